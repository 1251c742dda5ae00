// Text panes: the user's source and the stages, of which only the visible rows are elements.

const ROW = 19;
const SOURCE = "source";
// Stages that have the code of the dearest kernels alone, besides machine code.
const CODE_KINDS = ["llvm", "cu", "ptx"];

const TOKEN = /("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|(?:#(?!-?\d)|;|\/\/).*$|%[\w.]+|@[\w.]+|\bk_[0-9a-f]{16}\b|\b(?:def|return|for|in|if|else|class|import|from|lambda|with|func|entry|routine|buffer|parallel|serial|unrolled|lanes|load|store|let|init|finish|accumulate|define|declare|br|ret|phi)\b|\b(?:f|bf|si|ui|i)\d{1,2}(?:_\w+)?\b|-?\b\d+(?:\.\d+)?(?:e[-+]?\d+)?\b)/g;
const PYTHON_TOKEN = new RegExp(TOKEN.source.replace("(?:#(?!-?\\d)|;|\\/\\/)", "#"), "g");
const kindOf = (token) => {
  const first = token[0];
  if (first === '"' || first === "'") return "str";
  if (first === "#" || first === ";" || token.startsWith("//")) return "com";
  if (first === "%" || first === "@" || token.startsWith("k_")) return "ref";
  if (/^-?\d/.test(token)) return "num";
  return /\d$/.test(token) ? "typ" : "key";
};
// In Python a ; parts statements; elsewhere a remark begins with it.
const coloured = (text, isPython = false) => {
  const parts = [];
  let last = 0;
  for (const match of text.matchAll(isPython ? PYTHON_TOKEN : TOKEN)) {
    if (match.index > last) parts.push(text.slice(last, match.index));
    parts.push(el("span", { class: `t-${kindOf(match[0])}` }, match[0]));
    last = match.index + match[0].length;
  }
  if (last < text.length) parts.push(text.slice(last));
  return parts;
};

// What each line is about, from spans of lines that are about the same.
const marksOf = (stage) => {
  if (!stage.map) {
    stage.map = new Map();
    for (const [from, to, marks, name] of stage.marks) {
      const about = aboutOf(marks, name);
      for (let at = from; at < to; at += 1) stage.map.set(at, about);
    }
  }
  return stage.map;
};

class Pane {
  constructor(stage) {
    this.stage = stage;
    this.file = "";
    this.cursor = -1;
    this.menu = el("select", { "aria-label": "What this pane shows", onchange: () => this.show(this.menu.value) });
    this.files = el("select", { "aria-label": "File", onchange: () => { this.file = this.files.value; this.load(); } });
    this.note = el("span", { class: "pane-note" });
    this.tools = el("span", { class: "pane-tools" });
    this.rows = el("div", { class: "rows" });
    this.scroller = el("div", {
      class: "scroller", tabindex: 0, role: "listbox", "aria-label": "Lines",
      onscroll: () => this.ask(), onkeydown: (event) => this.key(event),
      onpointermove: (event) => this.pointed(event), onclick: (event) => this.clicked(event),
      onpointerleave: (event) => { if (!state.pinned && !event.buttons) select({}, { scroll: false }); },
    }, this.rows);
    this.root = el("section", { class: "pane" },
      el("header", {}, this.menu, this.files, this.note, this.tools), this.scroller);
    new ResizeObserver(() => this.ask()).observe(this.scroller);
  }

  stages() { return [...(Object.keys(this.sources()).length ? [SOURCE] : []), ...program().stages.map((s) => s.name)]; }

  sources() {
    const used = new Set(program().values.map((value) => value[3]));
    return Object.fromEntries(Object.entries(state.data.sources).filter(([name]) => used.has(name)));
  }

  show(stage) {
    const names = this.stages();
    this.stage = names.includes(stage) ? stage : names[0];
    clear(this.menu, names.map((name) => el("option", { value: name, selected: name === this.stage }, name)));
    this.load();
    if (state.panes.includes(this)) remember();
  }

  load() {
    const sources = this.sources();
    const isSource = this.stage === SOURCE;
    this.files.hidden = !isSource || Object.keys(sources).length < 2;
    if (isSource) {
      const names = Object.keys(sources);
      if (!names.includes(this.file)) this.file = this.hottest(names);
      clear(this.files, names.map((name) => el("option", { value: name, selected: name === this.file }, baseName(name))));
      this.lines = sources[this.file] || [];
      this.marks = new Map();
      const { byPlace } = index();
      this.lines.forEach((_, at) => {
        const found = byPlace.get(`${this.file}\n${at + 1}`);
        if (found) this.marks.set(at, { values: found, kernels: [], names: [] });
      });
    } else {
      const stage = program().stages.find((each) => each.name === this.stage);
      this.lines = stage ? stage.text : ["There is no text: its source files are not on this machine."];
      this.marks = stage ? marksOf(stage) : new Map();
    }
    this.note.textContent = isSource ? (this.files.hidden ? baseName(this.file) : "") : `${this.lines.length.toLocaleString("en")} lines`;
    const widest = this.lines.reduce((most, line) => Math.max(most, line.length), 0);
    this.rows.style.height = `${this.lines.length * ROW + 8}px`;
    this.rows.style.width = `calc(${widest}ch + 90px)`;
    this.told = this.note.textContent;
    this.cursor = -1;
    clear(this.tools, editTools(this));
    this.draw();
    this.reveal();
    if (isSource && !state.values.size && !state.kernels.size) this.into(this.hottestLine());
  }

  hottestLine() {
    const { byLine } = index();
    let [best, most] = [0, 0];
    this.lines.forEach((_, at) => {
      const seconds = byLine.get(`${this.file}\n${at + 1}`) || 0;
      if (seconds > most) [best, most] = [at, seconds];
    });
    return best;
  }

  hottest(names) {
    const { byLine } = index();
    const sums = new Map(names.map((name) => [name, 0]));
    for (const [key, seconds] of byLine) {
      const file = key.split("\n")[0];
      if (sums.has(file)) sums.set(file, sums.get(file) + seconds);
    }
    return [...sums].sort((a, b) => b[1] - a[1])[0][0];
  }

  ask() { if (!this.asked) { this.asked = true; requestAnimationFrame(() => { this.asked = false; this.draw(false); }); } }

  // Rows that stay in sight while somebody scrolls are kept as they are.
  draw(again = true) {
    const started = performance.now();
    const kept = again ? new Map() : new Map([...this.rows.children].map((row) => [Number(row.dataset.at), row]));
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / ROW) - 4);
    const last = Math.min(this.lines.length, first + Math.ceil((this.scroller.clientHeight || 600) / ROW) + 10);
    const made = [];
    for (let at = first; at < last; at += 1) {
      if (!kept.delete(at)) made.push(this.row(at));
    }
    if (again) this.rows.replaceChildren(...made);
    else {
      for (const row of kept.values()) row.remove();
      this.rows.append(...made);
    }
    this.milliseconds = performance.now() - started;
  }

  row(at) {
    const marks = this.marks.get(at);
    const { byLine, total } = index();
    const share = this.stage === SOURCE ? (byLine.get(`${this.file}\n${at + 1}`) || 0) / total : 0;
    const lit = litness(marks);
    const row = el("div", {
      class: `row${marks ? " linked" : ""}${["", " near", " lit"][lit]}${at === this.cursor ? " cursor" : ""}`,
      role: "option", "aria-selected": lit ? "true" : "false", "data-at": at, "--y": `${at * ROW}px`,
    },
      el("span", { class: "gutter" }, String(at + 1)),
      this.stage === SOURCE && el("span", {
        class: "heat", title: share ? `${showShare(share)} of the time` : "", "--share": share.toFixed(4), "--heat": heat(share),
      }, share >= 0.005 ? showShare(share) : ""),
      el("code", {}, coloured(this.lines[at], this.stage === SOURCE)));
    return row;
  }

  atEvent(event) {
    const row = event.target.closest?.(".row");
    return row ? Number(row.dataset.at) : -1;
  }

  pointed(event) {
    const at = this.atEvent(event);
    // Who drags with a button down selects text, which must stay as it is.
    if (at === this.last || state.pinned || event.buttons) return;
    this.last = at;
    const marks = at >= 0 ? this.marks.get(at) : null;
    hover(marks || {}, this);
  }

  clicked(event) {
    if (String(getSelection())) return;
    const at = this.atEvent(event);
    const marks = at >= 0 ? this.marks.get(at) : null;
    this.cursor = at;
    this.note.textContent = this.told;
    if (marks) select(marks, { pin: true, from: this });
    else letGo();
    const isCode = at >= 0 && this.stage === SOURCE && this.lines[at].trim();
    if (!marks && isCode) this.note.textContent = `no instruction comes from line ${at + 1}`;
  }

  key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20 }[event.key];
    if (step) {
      event.preventDefault();
      this.cursor = Math.max(0, Math.min(this.lines.length - 1, this.cursor + step));
      this.into(this.cursor);
      const marks = this.marks.get(this.cursor);
      select(marks || {}, { from: this });
    } else if (event.key === "Enter") {
      const marks = this.marks.get(this.cursor);
      if (marks) select(marks, { pin: true, from: this });
    }
  }

  into(at) {
    const top = at * ROW;
    const { scrollTop, clientHeight } = this.scroller;
    if (top < scrollTop + ROW || top > scrollTop + clientHeight - 3 * ROW) this.scroller.scrollTop = top - clientHeight / 3;
  }

  reveal() {
    this.note.textContent = this.told;
    if (!state.values.size && !state.kernels.size) return;
    if (this.stage === SOURCE) this.openFile();
    let first = -1;
    for (let at = 0; at < this.lines.length; at += 1) {
      const lit = litness(this.marks.get(at));
      if (lit === LIT) { first = at; break; }
      if (lit && first < 0) first = at;
    }
    if (first >= 0) this.into(first);
    else this.note.textContent = this.absence();
  }

  // Why nothing of what is selected is here.
  absence() {
    const kernels = [...state.kernels].map((at) => program().kernels[at]);
    if (this.stage === SOURCE) return "no line of it is known";
    if (!CODES.includes(this.stage) && !CODE_KINDS.includes(this.stage)) return `${this.told}, none about it`;
    return kernels.some((kernel) => kernel.routine) ? "left out: weft explore --full has its code" : "the host carries it out: it has no code";
  }

  openFile() {
    const { byId } = index();
    const files = new Set([...state.values].map((id) => byId.get(id)?.[3]).filter((name) => this.sources()[name]));
    if (files.size && !files.has(this.file)) { [this.file] = files; this.load(); }
  }

  lit(scroll, from) {
    if (scroll && from !== this) this.reveal();
    this.draw();
  }
}

const codeView = () => {
  const box = el("div", { class: "panes" });
  const add = (stage) => {
    const pane = new Pane(stage);
    state.panes.push(pane);
    box.append(pane.root);
    pane.show(stage);
  };
  const opened = () => {
    const names = program().stages.map((stage) => stage.name);
    const code = CODES.find((name) => names.includes(name)) || names.at(-1);
    const room = innerWidth >= 1700 ? 4 : 3;
    const hasSource = program().values.some((value) => state.data.sources[value[3]]);
    // What is known of the user's file comes first; a program that came as text begins with itself.
    const usual = hasSource ? [SOURCE, "frontend", "region"] : ["frontend", "region", "plan"];
    const wanted = [...usual.filter((name) => name === SOURCE || names.includes(name)).slice(0, room - 1), code];
    state.panes = [];
    clear(box);
    (names.length ? (state.wantedPanes?.length ? state.wantedPanes : wanted) : [SOURCE]).forEach(add);
  };
  const less = el("button", { title: "One pane less", onclick: () => { if (state.panes.length > 1) { state.panes.pop().root.remove(); remember(); } } }, "−");
  const more = el("button", { title: "One pane more", onclick: () => { if (state.panes.length < 5) { add("plan"); remember(); } } }, "+");
  const hint = el("p", { class: "hint" }, "Point at a line to highlight the same values in every stage; click to keep the highlight, Esc to remove it. ");
  const told = el("span", { class: "told" });
  const root = el("div", { class: "view code" }, el("div", { class: "bar" }, hint, told, el("span", { class: "grow" }), "panes", less, more), box);
  onSelect((scroll, from) => {
    if (state.view !== "code") return;
    for (const pane of state.panes) pane.lit(scroll, from);
    told.textContent = inWords();
  });
  return {
    root,
    title: "Code",
    opened: () => { if (!state.panes.length || box.dataset.p !== String(state.at)) { box.dataset.p = state.at; opened(); } state.panes.forEach((pane) => pane.lit(true, null)); told.textContent = inWords(); },
    openStage: (name) => {
      const shown = state.panes.find((pane) => pane.stage === name);
      if (!shown) state.panes[Math.min(1, state.panes.length - 1)].show(name);
    },
  };
};

// The selection as a sentence: which instructions, which kernels, folded or not.
const inWords = () => {
  const { byId } = index();
  const p = program();
  const ids = [...state.values];
  if (!ids.length && !state.kernels.size) return "";
  const value = byId.get(ids[0]);
  const names = [...state.kernels].slice(0, 3).map((at) => p.kernels[at].name).join(", ");
  const more = state.kernels.size > 3 ? ` and ${state.kernels.size - 3} more` : "";
  const what = ids.length === 1 && value ? `%${value[0]} ${value[1]} ${value[2]}` : `${ids.length} instructions`;
  const isFolded = ids.length === 1 && p.folded[ids[0]];
  const where = names ? (isFolded ? `became the index map of ${names}${more}` : `computed by ${names}${more}`) : "no kernel of its own";
  const called = [...state.names].slice(0, 3).map((name) => name.replace("$", "")).join(" = ");
  return `${called ? `${called} inside · ` : ""}${what} · ${where}${value && value[5] && ids.length === 1 ? ` · ${value[5]}` : ""}`;
};
