// Kernels, dearest first, and a card for the one that is selected.

const MOST_ROWS = 400;

const kernelsView = () => {
  const list = el("div", { class: "kernel-list", role: "listbox", tabindex: 0, "aria-label": "Kernels, dearest first" });
  const card = el("div", { class: "card", tabindex: 0 });
  const root = el("div", { class: "view kernels" }, list, card);
  let order = [];
  let rows = [];

  const draw = () => {
    const p = program();
    const { time, total, measured } = index();
    order = p.kernels.map((_, at) => at).sort((a, b) => time(p.kernels[b]) - time(p.kernels[a]));
    const head = el("div", { class: "kernel head" },
      el("span", {}, measured ? "measured" : "estimated"), el("span", {}, "kernel"), el("span", {}, "ops"),
      el("span", {}, "line"), el("span", {}, "layer"));
    rows = order.slice(0, MOST_ROWS).map((at) => {
      const kernel = p.kernels[at];
      const share = time(kernel) / total;
      return el("div", { class: "kernel", role: "option", "data-at": at, onclick: () => select({ kernels: [at] }, { pin: true, from: root }) },
        el("span", { class: "share", "--share": share.toFixed(4), "--heat": heat(share) },
          el("b", {}, showShare(share)), " ", el("i", {}, showSeconds(time(kernel)))),
        el("span", { class: "name" }, kernel.name),
        el("span", { class: "ops", title: kernel.op }, kernel.op),
        el("span", { class: "place" }, kernel.place),
        el("span", { class: "layer", title: kernel.layer }, kernel.layer));
    });
    const left = order.length - rows.length;
    clear(list, head, rows, left > 0 && el("p", { class: "hint" }, `… and ${left} cheaper ones; search finds them`),
      !order.length && el("p", { class: "hint" }, "This program has no kernels: nothing is left to compute."));
    lit();
  };

  const lit = () => {
    const chosen = state.kernels.size ? order.find((at) => state.kernels.has(at)) : order[0];
    for (const row of rows) {
      const is = Number(row.dataset.at) === chosen;
      row.classList.toggle("lit", state.kernels.has(Number(row.dataset.at)));
      row.setAttribute("aria-selected", is ? "true" : "false");
    }
    clear(card, chosen == null ? [] : cardOf(chosen));
  };

  list.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const now = order.findIndex((at) => state.kernels.has(at));
    const next = order[Math.max(0, Math.min(order.length - 1, now + step))];
    if (next == null) return;
    select({ kernels: [next] }, { pin: true });
    rows.find((row) => Number(row.dataset.at) === next)?.scrollIntoView({ block: "nearest" });
  });
  onSelect(() => { if (state.view === "kernels") lit(); });
  return { root, title: "Kernels", opened: draw };
};

const fact = (name, value, note) => el("div", { class: "fact" }, el("span", {}, name), el("b", {}, value), note ? el("small", {}, note) : null);

const cardOf = (at) => {
  const p = program();
  const kernel = p.kernels[at];
  const { time, total, measured, byId } = index();
  const alike = p.kernels.filter((other) => other.routine && other.routine === kernel.routine).length - 1;
  const seconds = time(kernel);
  const speed = seconds ? kernel.flops / seconds : 0;
  const moved = seconds ? kernel.bytes / seconds : 0;
  const open = (stage) => () => { select({ kernels: [at] }, { pin: true }); show("code"); views.get("code").openStage(stage); };
  const source = kernel.place ? el("button", { class: "link", onclick: open(SOURCE) }, kernel.place) : el("span", {}, "no line is known");
  const codes = p.stages.map((stage) => stage.name).slice(-2);
  const others = [...new Set(kernel.lines)].filter((line) => line !== kernel.place);
  return [
    el("h2", {}, kernel.name, " ", el("small", {}, kernel.pattern)),
    el("p", { class: "where" }, source, kernel.layer ? [" in ", el("b", {}, kernel.layer)] : null, alike > 0 ? ` · ${alike} more like it` : ""),
    others.length > 0 && el("p", { class: "soft" }, `also from ${others.slice(0, 6).join(", ")}`),
    el("div", { class: "facts" },
      fact("share of the time", showShare(seconds / total)),
      fact(measured ? "measured" : "not measured", showSeconds(kernel.seconds)),
      fact("estimated", showSeconds(kernel.estimate)),
      fact("arithmetic", `${showCount(kernel.flops)} ops`, speed ? `${showCount(speed)}op/s` : ""),
      fact("memory", showBytes(kernel.bytes), moved ? `${showBytes(moved)}/s` : ""),
      fact("units busy", showShare(kernel.occupancy), kernel.routine ? "" : "on the host"),
      ...takenFacts(kernel.takes)),
    rooflineOf(kernel, seconds),
    el("p", { class: "jump" }, ["frontend", "region", "plan", ...codes].filter((name) => p.stages.some((s) => s.name === name))
      .map((name) => el("button", { onclick: open(name) }, `${name} →`))),
    el("h3", {}, "What it computes"),
    el("div", { class: "nest" }, kernel.nest.split("\n").map((line) => nestLine(line, at))),
    el("h3", {}, "Why it ends here"),
    el("p", {}, endsBecause(kernel)),
    kernel.fields.length > 0 && el("h3", {}, `Plan: ${kernel.plan}`),
    kernel.fields.length > 0 && el("table", { class: "plan" }, kernel.fields.map(([name, value, meaning]) =>
      el("tr", {}, el("th", {}, name), el("td", {}, el("code", {}, value)), el("td", { class: "soft" }, meaning)))),
    el("h3", {}, `Its ${kernel.values.length} instruction${kernel.values.length === 1 ? "" : "s"}`),
    el("ul", { class: "ids" }, kernel.values.slice(0, 60).map((id) => {
      const value = byId.get(id);
      return value && el("li", {}, el("button", { class: "link", onclick: () => { select({ values: [id] }, { pin: true }); show("code"); } },
        `%${id} ${value[1]}`), ` ${value[2]}`, el("span", { class: "soft" }, value[3] ? ` ${baseName(value[3])}:${value[4]} ${value[5]}` : ""));
    })),
    el("h3", {}, "Memory"),
    el("p", {}, "reads ", el("code", {}, kernel.reads.join(", ") || "nothing"), ", writes ", el("code", {}, kernel.writes.join(", "))),
    notesOn(kernel.name),
  ];
};

// A line of the nest; one that sets a value leads to that value in every stage.
const nestLine = (line, at) => {
  const kernel = program().kernels[at];
  const name = /^\s*(\w+)(?:\[.*\])? \+?= /.exec(line)?.[1];
  const values = kernel.inside[name] || [];
  const { byId } = index();
  if (!values.length) return el("div", {}, el("code", {}, coloured(line)));
  const from = values.map((id) => byId.get(id)).filter(Boolean).map((value) => `%${value[0]} ${value[1]}${value[3] ? ` ${baseName(value[3])}:${value[4]}` : ""}`).join(", ");
  return el("div", {
    class: "linked", title: `${name} is ${from}: click for its code`,
    onclick: () => { if (String(getSelection())) return; select({ values, kernels: [at], names: [name] }, { pin: true }); show("code"); },
  }, el("code", {}, coloured(line)), el("span", { class: "from" }, from));
};

// What a kernel takes of a GPU, as its compiler says.
const takenFacts = (takes) => (takes.threads ? [
  fact("blocks", takes.blocks.toLocaleString("en"), `of ${takes.threads} threads`),
  fact("registers", `${takes.registers} a thread`, takes.spilled ? `${showBytes(takes.spilled)} spilled` : "nothing spilled"),
  fact("shared memory", showBytes(takes.shared), takes.stack ? `${showBytes(takes.stack)} of stack` : ""),
] : []);

const endsBecause = (kernel) => {
  if (kernel.why) return `Its result goes through memory: ${kernel.why}.`;
  const p = program();
  const readers = p.kernels.filter((other) => other.after.includes(kernel.name)).map((other) => other.name);
  if (!readers.length) return "Nothing in this program reads what it writes: it is a result.";
  const some = readers.slice(0, 4).join(", ");
  return `${kernel.writes.join(", ")} is read by ${some}${readers.length > 4 ? ` and ${readers.length - 4} more` : ""}; computing it again there, or merging the loops, was estimated to cost more than going through memory, or the loops do not fit together.`;
};

const notesOn = (name) => {
  const found = program().notes.filter((note) => note.split(/[^\w]+/).includes(name));
  return found.length ? [el("h3", {}, "What the compiler said"), el("ul", {}, found.slice(0, 12).map((note) => el("li", {}, note)))] : null;
};

// Operations a byte against operations a second, both by powers of ten.
const rooflineOf = (kernel, seconds) => {
  const canvas = el("canvas", { class: "roofline", role: "img", "aria-label": limitInWords(kernel, seconds) });
  const { machine } = program();
  new Painting(canvas, (pen, width, height, inks) => {
    const [left, right, low, high] = [-2, 4, 7, Math.ceil(Math.log10(Math.max(kernel.ceiling, 1e10))) + 0.3];
    const [x0, y1] = [46, height - 24];
    const x = (value) => x0 + ((Math.log10(value) - left) / (right - left)) * (width - x0 - 12);
    const y = (value) => y1 - ((Math.log10(value) - low) / (high - low)) * (y1 - 10);
    pen.font = "11px ui-sans-serif, system-ui, sans-serif";
    pen.strokeStyle = inks.line;
    pen.fillStyle = inks.soft;
    for (let power = left; power <= right; power += 1) {
      pen.beginPath(); pen.moveTo(x(10 ** power), 8); pen.lineTo(x(10 ** power), y1); pen.stroke();
      if (power % 2 === 0 && power < right) pen.fillText(power < 0 ? String(10 ** power) : showCount(10 ** power), x(10 ** power) - 6, height - 9);
    }
    for (let power = Math.ceil(low); power <= high; power += 1) pen.fillText(showCount(10 ** power), 6, y(10 ** power) + 4);
    pen.textAlign = "right"; pen.fillText("op/byte", width - 12, height - 9); pen.textAlign = "left";
    const bend = kernel.ceiling / machine.bandwidth;
    pen.strokeStyle = inks.accent; pen.lineWidth = 2;
    pen.beginPath(); pen.moveTo(x(10 ** left), Math.min(y1, y(machine.bandwidth * 10 ** left)));
    const start = Math.max(10 ** left, 10 ** low / machine.bandwidth);
    pen.moveTo(x(start), y(machine.bandwidth * start));
    pen.lineTo(x(bend), y(kernel.ceiling)); pen.lineTo(x(10 ** right), y(kernel.ceiling)); pen.stroke(); pen.lineWidth = 1;
    const intensity = Math.min(10 ** right, Math.max(10 ** left, kernel.flops / Math.max(1, kernel.bytes)));
    const reached = seconds ? Math.max(10 ** low, kernel.flops / seconds) : 0;
    if (!reached || !kernel.flops) return;
    pen.fillStyle = inks.mark;
    pen.beginPath(); pen.arc(x(intensity), y(reached), 6, 0, 7); pen.fill();
    pen.strokeStyle = inks.panel; pen.lineWidth = 2; pen.stroke(); pen.lineWidth = 1;
  }).ask();
  return el("figure", {}, canvas, el("figcaption", { class: "soft" }, limitInWords(kernel, seconds)));
};

const limitInWords = (kernel, seconds) => {
  if (!kernel.bytes && !kernel.flops) return "It computes nothing: it only hands memory on.";
  const { machine } = program();
  const reach = kernel.bound === "memory"
    ? `${showShare(seconds ? kernel.bytes / seconds / machine.bandwidth : 0)} of ${showBytes(machine.bandwidth)}/s`
    : `${showShare(seconds ? kernel.flops / seconds / kernel.ceiling : 0)} of ${showCount(kernel.ceiling)}op/s`;
  return `Limited by ${kernel.bound}: it reaches ${reach}, at ${(kernel.flops / Math.max(1, kernel.bytes)).toFixed(2)} operations a byte.`;
};
