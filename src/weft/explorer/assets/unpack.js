// The data of a page as it was before it was made small; `packing.py` is the other direction. The
// text of a stage is made when somebody first looks at it.

const linesOf = (packed) => {
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

const spansOf = ({ names, flat }) => {
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

const kernelsOf = ({ count, columns, plans, nests, values, words, inside }) => {
  if (!count) return [];
  const lines = linesOf(nests);
  const [about, named] = [new Steps(values), new Steps(inside)];
  const names = Object.keys(columns);
  let line = 0;
  return Array.from({ length: count }, (_, at) => {
    const kernel = {};
    for (const name of names) kernel[name] = columns[name][at];
    const from = line;
    line += kernel.nest;
    kernel.nest = lines.slice(from, line).join("\n");
    kernel.fields = plans[kernel.fields];
    kernel.values = about.list();
    kernel.inside = {};
    for (let left = named.next(); left > 0; left -= 1) {
      const name = words[named.next()];
      kernel.inside[name] = named.list();
    }
    return kernel;
  });
};

const unpackedStage = ({ text, marks, ...stage }) => {
  const once = (make) => { let made; return () => { made ??= make(); return made; }; };
  Object.defineProperty(stage, "text", { get: once(() => linesOf(text)) });
  Object.defineProperty(stage, "marks", { get: once(() => spansOf(marks)) });
  return { count: Array.isArray(text) ? text.length : text.order.length, stage };
};

const unpackedProgram = (p) => {
  const stages = p.stages.map((each) => {
    const { count, stage } = unpackedStage(each);
    stage.count = count;
    return stage;
  });
  return { ...p, stages, values: valuesOf(p.values), kernels: kernelsOf(p.kernels) };
};
