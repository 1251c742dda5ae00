// The page itself: head, strip, search, views.

// What machine code is called, for a CPU and for a GPU.
const CODES = ["asm", "sass"];

const stripOf = () => {
  const p = program();
  const most = Math.max(...p.times.map(([, ms]) => ms), 0.001);
  const lines = new Map(p.stages.map((stage) => [stage.name, stage.count ?? stage.text.length]));
  const timed = new Set(p.times.map(([name]) => name));
  const code = !timed.has("machine code") && CODES.some((each) => lines.has(each)) ? [["machine code", 0]] : [];
  const untimed = p.stages.map((stage) => stage.name).filter((name) => !timed.has(name) && !CODES.includes(name)).map((name) => [name, 0]);
  // Machine code comes last, behind what it is made of.
  const isLast = ([name]) => name === "machine code";
  return [...p.times.filter((each) => !isLast(each)), ...untimed, ...p.times.filter(isLast), ...code].map(([name, ms]) => {
    const stage = lines.has(name) ? name : name === "machine code" ? CODES.find((code) => lines.has(code)) : null;
    return el("button", {
      class: "stage", disabled: !stage, title: stage ? `Open ${stage}` : `${name}: a step that has no text`,
      onclick: () => { show("code"); views.get("code").openStage(stage); },
    }, el("b", {}, name === "machine code" ? stage || "machine" : name), el("span", { class: "ms" }, ms >= 0.05 ? showMs(ms) : "–"),
      el("small", {}, stage ? `${showCount(lines.get(stage))} lines` : ""), el("i", { "--share": (ms / most).toFixed(3) }));
  });
};

const found = (query) => {
  const p = program();
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return [];
  const has = (text) => words.every((word) => text.toLowerCase().includes(word));
  const { time, total, others } = index();
  const kernels = p.kernels.map((kernel, at) => ({ at, kernel })).filter(({ kernel }) => has([kernel.name, kernel.op, kernel.place, ...kernel.lines, kernel.layer, kernel.routine, kernel.key].join(" ")))
    .sort((a, b) => time(b.kernel) - time(a.kernel)).slice(0, 25)
    .map(({ at, kernel }) => ({ what: { kernels: [at] }, title: kernel.name, note: `${showShare(time(kernel) / total)} ${kernel.op} ${kernel.place} ${kernel.layer}`, view: null }));
  const values = p.values.filter((value) => has([`%${value[0]}`, value[1], value[2], value[3] ? `${baseName(value[3])}:${value[4]}` : "", others.get(value[0]) || "", value[5]].join(" "))).slice(0, 25)
    .map((value) => ({ what: { values: [value[0]] }, title: `%${value[0]} ${value[1]}`, note: `${value[2]} ${value[5]}`, view: "code" }));
  return [...kernels, ...values];
};

const searchBox = () => {
  const results = el("div", { class: "results", role: "listbox" });
  results.hidden = true;
  const input = el("input", { type: "search", placeholder: "Search  (key /)", title: "A kernel, an op, %7, file.py:12, a layer", "aria-label": "Search" });
  let hits = [];
  let at = 0;
  const draw = () => {
    hits = found(input.value);
    results.hidden = !input.value;
    at = Math.min(at, Math.max(0, hits.length - 1));
    clear(results, hits.length ? hits.map((hit, n) => el("div", { role: "option", class: n === at ? "lit" : "", "aria-selected": n === at ? "true" : "false", onpointerdown: (event) => { event.preventDefault(); go(n); } }, el("b", {}, hit.title), " ", el("span", { class: "soft" }, hit.note))) : el("p", { class: "hint" }, "nothing is called so"));
  };
  const go = (n) => { const hit = hits[n]; if (!hit) return; results.hidden = true; input.blur(); if (hit.view && state.view === "kernels") show(hit.view); select(hit.what, { pin: true }); };
  input.addEventListener("input", () => { at = 0; draw(); });
  input.addEventListener("focus", draw);
  input.addEventListener("blur", () => { results.hidden = true; });
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") at += 1; else if (event.key === "ArrowUp") at = Math.max(0, at - 1);
    else if (event.key === "Enter") { go(at); return; } else if (event.key === "Escape") { input.value = ""; input.blur(); return; } else return;
    event.preventDefault();
    draw();
  });
  return { root: el("div", { class: "search" }, input, results), input };
};

let page;
const show = (name) => {
  state.view = name;
  for (const [each, view] of views) { view.root.hidden = each !== name; page.tabs.get(each).setAttribute("aria-selected", each === name ? "true" : "false"); }
  views.get(name).opened();
  remember();
};
const switchTo = (at) => {
  state.at = at;
  state.values = new Set(); state.kernels = new Set(); state.names = new Set(); state.pinned = false;
  state.wantedPanes = state.panes.map((pane) => pane.stage);
  drawHead();
  show(state.view);
};
const drawHead = () => {
  const p = program();
  clear(page.programs, state.data.programs.map((each, at) => el("option", { value: at, selected: at === state.at }, titleOf(each))));
  clear(page.strip, stripOf());
  page.about.textContent = `${p.values.length.toLocaleString("en")} value${p.values.length === 1 ? "" : "s"}, ${p.kernels.length.toLocaleString("en")} kernel${p.kernels.length === 1 ? "" : "s"}${p.why ? ` · ${p.why}` : ""}`;
};

const themeButton = () => el("button", {
  title: "Light or dark", "aria-label": "Light or dark",
  onclick: () => { document.documentElement.dataset.theme = isDark() ? "light" : "dark"; dispatchEvent(new Event("themechange")); views.get(state.view).opened(); },
}, "◐");

const build = () => {
  const search = searchBox();
  const programs = el("select", { class: "programs", "aria-label": "Program", onchange: () => switchTo(Number(programs.value)) });
  const strip = el("nav", { class: "strip", "aria-label": "Stages with their times" });
  const about = el("span", { class: "about" });
  const made = { kernels: kernelsView, code: codeView, graph: graphView, memory: memoryView, timeline: timelineView, compare: compareView };
  for (const [name, make] of Object.entries(made)) views.set(name, make());
  const tabs = new Map([...views].map(([name, view], n) => [name, el("button", { role: "tab", title: `Key ${n + 1}`, onclick: () => show(name) }, view.title)]));
  page = { programs, strip, about, tabs, search };
  clear(document.getElementById("app"),
    el("header", { class: "top" }, el("b", { class: "logo" }, "weft"), programs, el("div", { class: "tabs", role: "tablist" }, ...tabs.values()), el("span", { class: "grow" }), search.root, themeButton()),
    strip, el("div", { class: "aboutline" }, about), ...[...views.values()].map((view) => view.root));
  addEventListener("keydown", (event) => {
    // A menu is no place to write: the page's keys work in it, and its own are the arrows and letters.
    if (event.target.closest?.("input, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") { event.preventDefault(); search.input.focus(); }
    else if (event.key === "Escape") { if (event.target.closest?.("select")) event.target.blur(); letGo(); }
    else if (/^[1-6]$/.test(event.key)) {
      event.preventDefault();
      const name = [...views.keys()][Number(event.key) - 1];
      show(name);
      // Arrows go on where the eyes are.
      const { root } = views.get(name);
      (root.querySelector("[tabindex='0']") || root.querySelector("select"))?.focus({ preventScroll: true });
    }
  });
};

const unpack = async (text) => {
  const stream = new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
};

const begin = async () => {
  const started = performance.now();
  const app = document.getElementById("app");
  try {
    state.data = await unpack(document.getElementById("data").textContent);
    state.data.programs = state.data.programs.map(unpackedProgram);
  } catch (error) {
    clear(app, el("p", { class: "loading" }, `This file is damaged: ${error.message}`));
    return;
  }
  if (!state.data.programs.length) { clear(app, el("p", { class: "loading" }, "There is no program in this file.")); return; }
  build();
  const { kernel, values, stages } = recall();
  state.wantedPanes = stages;
  drawHead();
  show(state.view);
  if (kernel != null) select({ kernels: [kernel] }, { pin: true });
  else if (values.length) select({ values }, { pin: true });
  document.documentElement.dataset.ready = (performance.now() - started).toFixed(0);
  window.weft = { state, views, select, show, index };
};
begin();
