// The data of a page as it was before it was made small; `packing.py` is the other direction. Texts,
// and what only they need, are made when somebody first looks at them.

const once = (make) => { let made; return () => { made ??= make(); return made; }; };
const later = (object, name, make) => Object.defineProperty(object, name, { get: once(make), enumerable: true });

const bytesOf = (base64) => {
  const letters = atob(base64);
  const bytes = new Uint8Array(letters.length);
  for (let at = 0; at < letters.length; at += 1) bytes[at] = letters.charCodeAt(at);
  return bytes;
};

const linesOf = (text) => {
  const packed = JSON.parse(text);
  if (Array.isArray(packed)) return packed;
  const { kinds, order, numbers } = packed;
  const parts = kinds.map((kind) => kind.split("\0"));
  const before = parts.map((each) => new Array(each.length - 1).fill(0));
  let at = 0;
  return order.map((kind) => {
    const [pieces, values] = [parts[kind], before[kind]];
    let line = pieces[0];
    for (let n = 0; n < values.length; n += 1) {
      values[n] += numbers[at];
      at += 1;
      line += values[n] + pieces[n + 1];
    }
    return line;
  });
};

// Reads lists of numbers, each number a step from the one before.
class Steps {
  constructor(flat) { this.flat = flat; this.at = 0; this.first = 0; }

  next() { this.at += 1; return this.flat[this.at - 1]; }

  list() {
    const found = new Array(this.next());
    let value = this.first;
    for (let n = 0; n < found.length; n += 1) { value += this.next(); found[n] = value; }
    if (found.length) [this.first] = found;
    return found;
  }
}

const spansOf = (text) => {
  const { names, flat } = JSON.parse(text);
  const steps = new Steps(flat);
  const spans = [];
  let end = 0;
  while (steps.at < flat.length) {
    const start = end + steps.next();
    end = start + steps.next();
    const about = steps.list();
    const name = steps.next();
    spans.push(name ? [start, end, about, names[name - 1]] : [start, end, about]);
  }
  return spans;
};

const valuesOf = ({ words, flat }) => {
  const steps = new Steps(flat);
  const found = [];
  let id = 0;
  while (steps.at < flat.length) {
    id += steps.next();
    const [op, kind, file, line, layer] = Array.from({ length: 5 }, () => steps.next());
    const uses = Array.from({ length: steps.next() }, () => id - steps.next());
    found.push([id, words[op], words[kind], words[file], line, words[layer], uses]);
  }
  return found;
};

// What the kernels call the values inside them, kernel by kernel.
const namesInside = (text, count) => {
  const { words, flat } = JSON.parse(text);
  const steps = new Steps(flat);
  return Array.from({ length: count }, () => {
    const found = {};
    for (let left = steps.next(); left > 0; left -= 1) {
      const name = words[steps.next()];
      found[name] = steps.list();
    }
    return found;
  });
};

const kernelsOf = ({ count, columns, plans, nests, values, inside }) => {
  if (!count) return [];
  const [lines, names] = [once(() => linesOf(nests)), once(() => namesInside(inside, count))];
  const about = new Steps(values);
  const fields = Object.keys(columns);
  let line = 0;
  return Array.from({ length: count }, (_, at) => {
    const kernel = {};
    for (const name of fields) kernel[name] = columns[name][at];
    const from = line;
    line += kernel.nest;
    const to = line;
    later(kernel, "nest", () => lines().slice(from, to).join("\n"));
    kernel.fields = plans[kernel.fields];
    kernel.values = about.list();
    later(kernel, "inside", () => names()[at]);
    return kernel;
  });
};

const unpackedStage = ({ text, marks, ...stage }) => {
  later(stage, "text", () => linesOf(text));
  later(stage, "marks", () => spansOf(marks));
  return stage;
};

const unpackedProgram = (p) => ({ ...p, stages: p.stages.map(unpackedStage), values: valuesOf(p.values), kernels: kernelsOf(p.kernels) });
