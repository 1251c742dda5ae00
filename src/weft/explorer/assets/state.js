// What is shown and what is selected. A selection is a set of instructions, a set of kernels, and
// names that these kernels have for values inside them; everything on the page is lit by it, and the
// address after # has it.

const state = {
  data: null,
  at: 0,
  view: "kernels",
  values: new Set(),
  kernels: new Set(),
  names: new Set(),
  pinned: false,
  panes: [],
  other: null,
};
const listeners = new Set();
const views = new Map();
const onSelect = (listener) => { listeners.add(listener); return listener; };
const tell = (scroll, from) => { for (const each of listeners) each(scroll, from); };

const titleOf = (p) => (p.stages.length ? `${p.name} · ${p.target} · -O${p.level}` : p.name);
const program = () => state.data.programs[state.at];

// Indexes over one program, made when they are first asked for.
const index = (p = program()) => {
  if (p.index) return p.index;
  const byId = new Map(p.values.map((value) => [value[0], value]));
  const kernelsOf = new Map();
  p.kernels.forEach((kernel, at) => kernel.values.forEach((id) => {
    if (!kernelsOf.has(id)) kernelsOf.set(id, []);
    kernelsOf.get(id).push(at);
  }));
  const named = new Map(p.kernels.map((kernel, at) => [kernel.name, at]));
  for (const [id, names] of Object.entries(p.folded)) {
    const found = names.map((name) => named.get(name)).filter((at) => at != null);
    if (!kernelsOf.has(Number(id)) && found.length) kernelsOf.set(Number(id), found);
  }
  const measured = p.kernels.some((kernel) => kernel.seconds > 0);
  const time = (kernel) => (measured ? kernel.seconds : kernel.estimate);
  const total = p.kernels.reduce((sum, kernel) => sum + time(kernel), 0) || 1;
  const most = Math.max(...p.kernels.map((kernel) => time(kernel) / total), 1e-9);
  const byPlace = new Map();
  const stands = (file, line, id) => {
    const key = `${file}\n${line}`;
    if (!byPlace.has(key)) byPlace.set(key, []);
    byPlace.get(key).push(id);
  };
  for (const value of p.values) if (value[3]) stands(value[3], value[4], value[0]);
  // What took the place of instructions of several lines belongs to all of them.
  const others = new Map();
  for (const [file, line, ids] of p.beside || []) {
    for (const id of ids) {
      stands(file, line, id);
      others.set(id, `${others.get(id) || ""} ${baseName(file)}:${line}`);
    }
  }
  const byLine = new Map();
  for (const kernel of p.kernels) {
    const key = `${kernel.file}\n${kernel.line}`;
    byLine.set(key, (byLine.get(key) || 0) + time(kernel));
  }
  const users = new Map();
  for (const value of p.values) for (const id of value[6]) {
    if (!users.has(id)) users.set(id, []);
    users.get(id).push(value[0]);
  }
  const writers = new Map(p.kernels.flatMap((kernel, at) => kernel.writes.map((name) => [name, at])));
  p.index = { writers, byId, kernelsOf, named, measured, time, total, most, byPlace, others, byLine, users };
  return p.index;
};

const select = ({ values = [], kernels = [], names = [] }, { pin = false, scroll = true, from = null } = {}) => {
  const { kernelsOf } = index();
  state.values = new Set(values);
  state.kernels = new Set(kernels);
  state.names = new Set(names);
  if (state.values.size) {
    for (const id of state.values) for (const at of kernelsOf.get(id) || []) state.kernels.add(at);
  } else {
    for (const at of state.kernels) for (const id of program().kernels[at].values) state.values.add(id);
  }
  state.pinned = pin && state.kernels.size + state.values.size > 0;
  tell(scroll, from);
  if (pin) remember();
};

const letGo = () => { state.pinned = false; select({}, { scroll: false }); remember(); };
const hover = (what, from) => { if (!state.pinned) select(what, { scroll: true, from }); };

// What a line is about, from its marks: instructions, or -1 - n for kernel n; and what that kernel
// calls it, from which follow the instructions where they are known. A GPU's variables begin with $.
const aboutOf = (marks, name) => {
  const kernels = marks.filter((mark) => mark < 0).map((mark) => -1 - mark);
  const values = new Set(marks.filter((mark) => mark >= 0));
  const names = name ? name.split(" ") : [];
  for (const at of kernels) for (const each of names) for (const id of program().kernels[at].inside[each] || []) values.add(id);
  return { values: [...values], kernels, names };
};
const variableOf = (names) => { for (const name of names) if (name[0] === "$") return name; return null; };

const LIT = 2;
const NEAR = 1;
// How much a line belongs to the selection: it is about it, or about a kernel that computes it.
const litness = (about) => {
  if (!about) return 0;
  const inside = about.kernels.some((at) => state.kernels.has(at));
  // Of a value that is many variables, the one that was pointed at.
  const [wanted, own] = [variableOf(state.names), variableOf(about.names)];
  if (wanted && own) return inside ? (wanted === own ? LIT : NEAR) : 0;
  if (about.values.some((id) => state.values.has(id)) && (inside || !about.kernels.length)) return LIT;
  if (!inside) return 0;
  return about.names.some((name) => state.names.has(name)) ? LIT : NEAR;
};

const remember = () => {
  const parts = { v: state.view };
  if (state.at) parts.p = state.at;
  if (state.pinned) {
    if (state.kernels.size === 1) parts.k = program().kernels[[...state.kernels][0]].name;
    else if (state.values.size) parts.i = [...state.values].slice(0, 40).join(".");
  }
  if (state.panes.length) parts.s = state.panes.map((pane) => pane.stage).join(".");
  try {
    history.replaceState(null, "", `#${new URLSearchParams(parts)}`);
  } catch {
    // Inside a notebook the page has no address of its own, and browsers limit how often one changes.
  }
};

const recall = () => {
  const parts = new URLSearchParams(location.hash.slice(1));
  const at = Number(parts.get("p") || 0);
  if (state.data.programs[at]) state.at = at;
  if (views.has(parts.get("v"))) state.view = parts.get("v");
  const kernel = index().named.get(parts.get("k"));
  const values = (parts.get("i") || "").split(".").filter(Boolean).map(Number);
  return { kernel, values, stages: (parts.get("s") || "").split(".").filter(Boolean) };
};
