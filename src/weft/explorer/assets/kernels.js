// Kernels, slowest first, and a card for the one that is selected.

const MOST_ROWS = 400;

const MANY_KERNELS = 30;

// A row for each kernel, or for all that are carried out by the same code.
const kernelRows = (together) => {
  const p = program();
  const { time } = index();
  const rows = new Map();
  p.kernels.forEach((kernel, at) => {
    const key = together && kernel.routine ? kernel.routine : at;
    if (!rows.has(key)) rows.set(key, { kernels: [], seconds: 0 });
    const row = rows.get(key);
    row.kernels.push(at);
    row.seconds += time(kernel);
  });
  for (const row of rows.values()) row.kernels.sort((a, b) => time(p.kernels[b]) - time(p.kernels[a]));
  return [...rows.values()].sort((a, b) => b.seconds - a.seconds);
};

// blocks[0].up and blocks[7].up are blocks[*].up.
const commonLayer = (layers) => {
  const shared = new Set(layers.map((layer) => layer.replace(/\[\d+\]/g, "[*]")));
  return new Set(layers).size === 1 ? layers[0] : shared.size === 1 ? [...shared][0] : [...shared].slice(0, 3).join(", ");
};

// Where kernels come from: net.py:3, 7 and how many more.
const MOST_PLACE = 26;
const commonPlace = (places) => {
  const [first, second, ...rest] = [...new Set(places)].filter(Boolean);
  if (!first) return "";
  const [file] = first.split(":");
  const short = second?.startsWith(`${file}:`) ? second.slice(file.length + 1) : second;
  const text = [first, ...(second ? [short] : [])].join(", ") + (rest.length ? " …" : "");
  return text.length > MOST_PLACE ? (first.length > MOST_PLACE ? `…${first.slice(1 - MOST_PLACE)}` : `${first} …`) : text;
};

const kernelsView = () => {
  const together = el("input", { type: "checkbox", onchange: () => { asked = together.checked; draw(); } });
  const told = el("span", { class: "soft" });
  const asOne = el("label", { class: "together" }, together, "same code together");
  const bar = el("div", { class: "list-title" }, el("b", {}, "Slowest kernels first"), told, el("span", { class: "grow" }), asOne);
  const list = el("div", { class: "kernel-list", role: "listbox", tabindex: 0, "aria-label": "Kernels, slowest first" });
  const card = el("div", { class: "card", tabindex: 0 });
  const root = el("div", { class: "view kernels" }, list, card);
  let asked = null;
  let order = [];
  let rows = [];

  const draw = () => {
    const p = program();
    const { total, measured } = index();
    together.checked = asked ?? p.kernels.length > MANY_KERNELS;
    order = kernelRows(together.checked);
    const most = order.length ? order[0].seconds / total : 1;
    const runs = Math.max(1, ...p.kernels.map((kernel) => kernel.calls || 1));
    told.textContent = `${p.kernels.length.toLocaleString("en")} kernels take ${showSeconds(total)}${measured ? "" : ", as estimated"}${runs > 1 ? ` in ${runs} runs` : ""}`;
    // A saved profile knows no code.
    asOne.hidden = !p.kernels.some((kernel) => kernel.routine);
    const head = el("div", { class: "kernel head" },
      el("span", {}, measured ? "time, measured" : "time, estimated"), el("span", {}, "kernel"), el("span", {}, "ops"),
      el("span", {}, "line"), el("span", {}, "layer"));
    const places = order.slice(0, MOST_ROWS).map((row) => commonPlace(row.kernels.map((at) => p.kernels[at].place)));
    // A line that is cut short leads nowhere, so its column is as wide as it needs.
    list.style.setProperty("--place", `${8 * Math.max(12, ...places.map((place) => place.length))}px`);
    rows = order.slice(0, MOST_ROWS).map((row, n) => {
      const kernels = row.kernels.map((at) => p.kernels[at]);
      const [kernel] = kernels;
      const share = row.seconds / total;
      const layer = commonLayer(kernels.map((each) => each.layer));
      return el("div", { class: "kernel", role: "option", "data-at": n, onclick: () => choose(n) },
        el("span", { class: "share", "--share": share.toFixed(4), "--heat": heat(share, most) },
          el("b", {}, showShare(share)), " ", el("i", {}, showSeconds(row.seconds))),
        el("span", { class: "name" }, kernel.name, kernels.length > 1 && el("small", {}, ` ×${kernels.length}`)),
        el("span", { class: "ops", title: kernel.op }, kernel.op),
        el("span", { class: "place", title: [...new Set(kernels.map((each) => each.place))].slice(0, 12).join(", ") }, places[n]),
        el("span", { class: "layer", title: layer }, layer));
    });
    // Columns that nothing is known for leave their room to the others.
    list.classList.toggle("no-layers", p.kernels.every((kernel) => !kernel.layer));
    const left = order.length - rows.length;
    clear(list, p.kernels.length > 1 && bar, head, rows, left > 0 && el("p", { class: "hint" }, `… and ${left} cheaper ones; search finds them`),
      !order.length && el("p", { class: "hint" }, "This program has no kernels: nothing is left to compute."));
    lit();
  };

  const has = (row) => row.kernels.some((at) => state.kernels.has(at));
  const choose = (n) => select({ kernels: order[n].kernels.slice(0, 1) }, { pin: true, from: root });
  const lit = () => {
    const row = state.kernels.size ? order.find(has) : order[0];
    rows.forEach((each, n) => {
      each.classList.toggle("lit", has(order[n]));
      each.classList.toggle("shown", order[n] === row);
      each.setAttribute("aria-selected", order[n] === row ? "true" : "false");
    });
    const chosen = row?.kernels.find((at) => state.kernels.has(at)) ?? row?.kernels[0];
    clear(card, chosen == null ? [] : cardOf(chosen));
  };

  list.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || event.target !== list || !order.length) return;
    event.preventDefault();
    const now = state.kernels.size ? order.findIndex(has) : -1;
    const next = Math.max(0, Math.min(order.length - 1, now + step));
    choose(next);
    rows[next]?.scrollIntoView({ block: "nearest" });
  });
  onSelect(() => { if (state.view === "kernels") lit(); });
  return { root, title: "Kernels", opened: draw };
};

const fact = (name, value, note) => el("div", { class: "fact" }, el("span", {}, name), el("b", {}, value), note ? el("small", {}, note) : null);

const cardOf = (at) => {
  const p = program();
  const kernel = p.kernels[at];
  const { time, total, measured, byId } = index();
  const alike = p.kernels.filter((other) => other.routine && other.routine === kernel.routine);
  const seconds = time(kernel);
  const slower = p.kernels.filter((other) => time(other) > seconds).length;
  const rank = p.kernels.length < 2 ? "" : slower ? `number ${slower + 1} of ${p.kernels.length} by time` : `the slowest of ${p.kernels.length}`;
  const together = alike.length > 1 ? ` · ${alike.length - 1} more like it, ${showShare(alike.reduce((sum, each) => sum + time(each), 0) / total)} together` : "";
  const speed = seconds ? kernel.flops / seconds : 0;
  const moved = seconds ? kernel.bytes / seconds : 0;
  const open = (stage) => () => { select({ kernels: [at] }, { pin: true }); show("code"); views.get("code").openStage(stage); };
  const source = kernel.place ? el("button", { class: "link", onclick: open(SOURCE) }, kernel.place) : el("span", {}, "no line is known");
  const line = state.data.sources[kernel.file]?.[kernel.line - 1]?.trim();
  const codes = p.stages.map((stage) => stage.name).slice(-2);
  const others = [...new Set(kernel.lines)].filter((line) => line !== kernel.place);
  return [
    el("h2", {}, kernel.name, " ", el("small", {}, [kernel.pattern, rank].filter(Boolean).join(" · "))),
    el("p", { class: "where" }, source, kernel.layer ? [" in ", el("b", {}, kernel.layer)] : null, together),
    line && el("p", { class: "line", title: `${kernel.file}:${kernel.line}` }, el("code", {}, coloured(line, true))),
    others.length > 0 && el("p", { class: "soft" }, `also from ${others.slice(0, 6).join(", ")}`),
    !p.stages.length ? el("div", { class: "facts" }, fact("share of the time", showShare(seconds / total)), fact("measured", showSeconds(kernel.seconds), kernel.calls > 1 ? `in ${kernel.calls} runs` : "")) : el("div", { class: "facts" },
      fact("share of the time", showShare(seconds / total)),
      fact(measured ? "measured" : "not measured", showSeconds(kernel.seconds)),
      fact("estimated", showSeconds(kernel.estimate)),
      fact("arithmetic", `${showCount(kernel.flops)} ops`, speed ? `${showCount(speed)}op/s` : ""),
      fact("memory", showBytes(kernel.bytes), moved ? `${showBytes(moved)}/s` : ""),
      fact("occupancy", showShare(kernel.occupancy), kernel.routine ? "" : "on the host"),
      ...takenFacts(kernel.takes)),
    ...(p.stages.length ? detailsOf(kernel, at, seconds, open, codes) : []),
    el("h3", {}, p.stages.length ? `Its ${kernel.values.length} instruction${kernel.values.length === 1 ? "" : "s"}` : "What it computes"),
    el("ul", { class: "ids" }, kernel.values.slice(0, 60).map((id) => {
      const value = byId.get(id);
      return value && el("li", {}, el("button", { class: "link", onclick: () => { select({ values: [id] }, { pin: true }); show("code"); } },
        p.stages.length ? `%${id} ${value[1]}` : value[1]), ` ${value[2]}`, el("span", { class: "soft" }, value[3] ? ` ${baseName(value[3])}:${value[4]} ${value[5]}` : ""));
    })),
  ];
};

// What only a compiled program has, and no saved profile.
const detailsOf = (kernel, at, seconds, open, codes) => {
  const p = program();
  return [
    rooflineOf(kernel, seconds),
    el("p", { class: "jump" }, ["frontend", "region", "plan", ...codes].filter((name) => p.stages.some((s) => s.name === name))
      .map((name) => el("button", { onclick: open(name) }, `${name} →`))),
    el("h3", {}, "What it computes"),
    el("div", { class: "nest" }, kernel.nest.split("\n").map((line) => nestLine(line, at))),
    el("h3", {}, "Why it is one kernel"),
    choicesOf(kernel),
    kernel.fields.length > 0 && el("h3", {}, `Plan: ${kernel.plan}`),
    kernel.fields.length > 0 && el("table", { class: "plan" }, kernel.fields.map(([name, value, meaning]) =>
      el("tr", {}, el("th", {}, name), el("td", {}, el("code", {}, value), el("div", { class: "soft" }, meaning))))),
    raceOf(kernel),
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
  const open = () => { select({ values, kernels: [at], names: [name] }, { pin: true }); show("code"); };
  const from = values.map((id) => byId.get(id)).filter(Boolean).map((value) => `%${value[0]} ${value[1]}${value[3] ? ` ${baseName(value[3])}:${value[4]}` : ""}`).join(", ");
  return el("div", {
    class: "linked", title: `${name} is ${from}: click for its code`, tabindex: 0, role: "link",
    onclick: () => { if (!String(getSelection())) open(); }, onkeydown: (event) => { if (event.key === "Enter") open(); },
  }, el("code", {}, coloured(line)), el("span", { class: "from" }, from));
};

// What a kernel takes of a GPU, as its compiler says.
const takenFacts = (takes) => (takes.threads ? [
  fact("blocks", takes.blocks.toLocaleString("en"), `of ${takes.threads} threads`),
  fact("registers", `${takes.registers} a thread`, takes.spilled ? `${showBytes(takes.spilled)} spilled` : "nothing spilled"),
  fact("shared memory", showBytes(takes.shared), takes.stack ? `${showBytes(takes.stack)} of stack` : ""),
] : []);

// Why a kernel begins and ends where it does: each choice with the price of what was not chosen.
const choicesOf = (kernel) => {
  const { byId } = index();
  const named = (choice) => {
    const value = byId.get(choice.ids.at(-1));
    return el("b", {}, value ? `%${value[0]} ${value[1]}` : choice.name);
  };
  const priced = (choice, chosen, other, words) => (choice.apart ? [` ${showSeconds(choice[chosen])}; ${words} ${showSeconds(choice[other])}`] : []);
  const said = {
    stored: (choice) => ["The result ", named(choice), ` goes through memory: ${choice.why}.`, ...priced(choice, "apart", "together", "computed where it is read:")],
    inside: (choice) => [named(choice), " is computed here:", ...priced(choice, "together", "apart", "if it went through memory:")],
    refused: (choice) => ["Not one kernel with ", el("b", {}, choice.name), ":", ...priced(choice, "apart", "together", "as one:")],
  };
  const lines = kernel.choices.map((choice) => el("li", {}, said[choice.kind](choice)));
  return lines.length
    ? [el("ul", { class: "choices" }, lines), kernel.choices.some((choice) => choice.apart) && el("p", { class: "soft" }, "Times are estimates of all kernels that a choice concerns.")]
    : [el("p", {}, "There was nothing to choose: what it reads is an input, or stored for other reasons.")];
};

// Where a kernel was tuned, the race of its plans as it was run; elsewhere what estimates say of
// other plans that it would take.
const raceOf = (kernel) => {
  const race = program().races[kernel.key];
  if (!race || (!race.told && !race.others.length)) return null;
  const words = (changed) => el("code", {}, changed.map(([name, value]) => `${name} ${value}`).join(", "));
  const slowest = Math.max(...race.measured.map(([, seconds]) => seconds));
  const runner = ([changed, seconds]) => el("tr", { class: changed.length ? "" : "won" },
    el("td", { class: "num" }, showSeconds(seconds)), el("td", { class: "lap" }, el("i", { "--share": (seconds / slowest).toFixed(4) })),
    el("td", {}, changed.length ? words(changed) : el("b", {}, "the plan it has")));
  const other = ([changed, seconds]) => el("tr", {}, el("td", { class: "num" }, showSeconds(seconds)), el("td", {}, words(changed)));
  const others = () => [
    el("table", { class: "plan race" }, el("tr", {}, el("td", { class: "num" }, el("b", {}, showSeconds(kernel.estimate))), el("td", {}, "the plan it has, estimated")), race.others.map(other)),
    el("p", { class: "soft" }, "Estimates order plans roughly; weft tune measures them."),
  ];
  const laps = () => [
    el("table", { class: "plan race" }, race.measured.map(runner)),
    el("p", { class: "soft" }, "Measured, the fastest first; the fields are those that differ from its current plan."),
  ];
  return [
    el("h3", {}, race.measured.length ? "Measured plans" : "Other plans for it"),
    race.told && el("p", {}, `${race.told}.`),
    race.measured.length ? laps() : race.others.length > 0 && others(),
  ];
};

const notesOn = (name) => {
  const found = program().notes.filter((note) => note.split(/[^\w]+/).includes(name));
  return found.length ? [el("h3", {}, "Messages of the compiler"), el("ul", {}, found.slice(0, 12).map((note) => el("li", {}, note)))] : null;
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
  if (!kernel.bytes && !kernel.flops) return "It computes nothing: it only passes memory on.";
  const { machine } = program();
  const reach = kernel.bound === "memory"
    ? `${showShare(seconds ? kernel.bytes / seconds / machine.bandwidth : 0)} of ${showBytes(machine.bandwidth)}/s`
    : `${showShare(seconds ? kernel.flops / seconds / kernel.ceiling : 0)} of ${showCount(kernel.ceiling)}op/s`;
  return `Limited by ${kernel.bound}: it reaches ${reach}, at ${(kernel.flops / Math.max(1, kernel.bytes)).toFixed(2)} operations a byte.`;
};
