// The graph: rows in the order of the program, layers that fold, and lanes for what is alive, as a
// history of commits is drawn. Only the visible rows are painted.

const GRAPH_ROW = 26;
const LANE = 13;
const MOST_LANES = 24;

const graphItems = (p, byKernel) => {
  const { time, total, kernelsOf } = index(p);
  if (byKernel) {
    const at = new Map(p.kernels.map((kernel, n) => [kernel.name, n]));
    return p.kernels.map((kernel, n) => ({
      label: kernel.name, sub: kernel.op, place: kernel.place, layer: kernel.layer, share: time(kernel) / total,
      uses: kernel.after.map((name) => at.get(name)).filter((m) => m < n), what: { kernels: [n] },
    }));
  }
  const at = new Map(p.values.map((value, n) => [value[0], n]));
  return p.values.map((value, n) => {
    const kernel = (kernelsOf.get(value[0]) || [])[0];
    const own = kernel == null || p.folded[value[0]] ? 0 : time(p.kernels[kernel]) / p.kernels[kernel].values.length;
    return {
      label: `%${value[0]} ${value[1]}`, sub: value[2], place: value[3] ? `${baseName(value[3])}:${value[4]}` : "",
      layer: value[5], share: own / total, kernel: kernel == null ? "" : p.kernels[kernel].name,
      uses: value[6].map((id) => at.get(id)).filter((m) => m != null && m < n), what: { values: [value[0]] },
    };
  });
};

const layerParts = (layer) => (layer ? layer.split(".") : []);

// Rows of the tree of layers: neighbours that are in one layer are one group.
const graphRows = (items, folded) => {
  const rows = [];
  const visit = (from, to, depth, key) => {
    let at = from;
    while (at < to) {
      const part = items[at].parts[depth];
      if (part == null) { rows.push({ item: at, depth, from: at, to: at + 1 }); at += 1; continue; }
      let end = at + 1;
      while (end < to && items[end].parts[depth] === part) end += 1;
      const id = `${key}/${part}@${at}`;
      const row = { group: part, id, depth, from: at, to: end, name: items[at].parts.slice(0, depth + 1).join("."), folded: folded.has(id) };
      rows.push(row);
      if (!row.folded) visit(at, end, depth + 1, id);
      at = end;
    }
  };
  visit(0, items.length, 0, "");
  return rows;
};

const graphLanes = (items, rows) => {
  const rowOf = new Int32Array(items.length);
  rows.forEach((row, n) => { if (row.item != null || row.folded) for (let at = row.from; at < row.to; at += 1) rowOf[at] = n; });
  const edges = [];
  const last = new Map();
  rows.forEach((row, n) => {
    if (row.item == null && !row.folded) return;
    const seen = new Set();
    for (let at = row.from; at < row.to; at += 1) for (const use of items[at].uses) {
      const source = rowOf[use];
      if (source !== n && !seen.has(source)) { seen.add(source); edges.push([source, n]); last.set(source, n); }
    }
  });
  const busy = [];
  const lane = new Int32Array(rows.length);
  rows.forEach((row, n) => {
    if (row.item == null && !row.folded) { lane[n] = -1; return; }
    let free = 0;
    while (free < busy.length && busy[free] > n) free += 1;
    lane[n] = Math.min(free, MOST_LANES - 1);
    busy[free] = last.get(n) || n;
  });
  return { edges, lane, width: Math.min(busy.length, MOST_LANES) * LANE + 14 };
};

const graphView = () => {
  let byKernel = true;
  let items = [];
  let rows = [];
  let plan = { edges: [], lane: [], width: 0 };
  let cursor = 0;
  let drawn = "";
  let most = 1;
  // How wide the column with the lines is.
  let placeRoom = 110;
  const folded = new Set();
  const canvas = el("canvas", { class: "graph" });
  const spacer = el("div", { class: "spacer" });
  const scroller = el("div", { class: "graph-scroll", tabindex: 0, role: "tree", "aria-label": "The program as a graph; arrows move, Enter selects, left and right fold" }, canvas, spacer);
  const said = el("span", { class: "told", "aria-live": "polite" });
  const kind = el("select", { "aria-label": "What a box is", onchange: () => { byKernel = kind.value === "kernels"; rebuild(true); } },
    el("option", { value: "kernels" }, "a box is a kernel"), el("option", { value: "instructions" }, "a box is an instruction"));
  const foldAll = el("button", { onclick: () => { for (const row of allGroups()) folded.add(row.id); layout(); } }, "fold layers");
  const unfoldAll = el("button", { onclick: () => { folded.clear(); layout(); } }, "unfold all");
  const root = el("div", { class: "view graph-view" }, el("div", { class: "bar" }, kind, foldAll, unfoldAll, said), scroller);

  const allGroups = () => graphRows(items, new Set()).filter((row) => row.group != null && row.depth < 1 && row.to - row.from > 1);
  const rebuild = (fresh) => {
    items = graphItems(program(), byKernel).map((item) => ({ ...item, parts: layerParts(item.layer) }));
    if (fresh) { folded.clear(); if (items.length > 80) for (const row of allGroups()) folded.add(row.id); }
    drawn = `${state.at} ${byKernel}`;
    layout();
  };
  const layout = () => {
    rows = graphRows(items, folded);
    plan = graphLanes(items, rows);
    placeRoom = Math.min(210, 7 * items.reduce((longest, item) => Math.max(longest, item.place.length), 8) + 10);
    most = rows.reduce((top, row) => (row.item != null || row.folded ? Math.max(top, shareOf(row)) : top), 1e-9);
    spacer.style.height = `${rows.length * GRAPH_ROW + 20}px`;
    cursor = Math.min(cursor, rows.length - 1);
    painting.ask();
  };
  const shareOf = (row) => { let sum = 0; for (let at = row.from; at < row.to; at += 1) sum += items[at].share; return sum; };
  const isChosen = (row) => {
    for (let at = row.from; at < row.to; at += 1) {
      const { what } = items[at];
      if (what.kernels ? state.kernels.has(what.kernels[0]) : state.values.has(what.values[0])) return true;
    }
    return false;
  };

  const painting = new Painting(canvas, (pen, width, height, inks) => {
    const top = scroller.scrollTop;
    const first = Math.max(0, Math.floor(top / GRAPH_ROW) - 1);
    const last = Math.min(rows.length, Math.ceil((top + height) / GRAPH_ROW) + 1);
    const middle = (n) => n * GRAPH_ROW + GRAPH_ROW / 2 - top + 6;
    const left = (n) => 12 + plan.lane[n] * LANE;
    pen.lineWidth = 1.5;
    for (const [from, to] of plan.edges) {
      if (to < first || from > last) continue;
      const lit = isChosen(rows[from]) || isChosen(rows[to]);
      pen.strokeStyle = lit ? inks.mark : inks.line;
      const [x0, y0, x1, y1] = [left(from), middle(from), left(to), middle(to)];
      pen.beginPath(); pen.moveTo(x0, y0);
      if (x0 === x1) pen.lineTo(x1, y1);
      else { pen.lineTo(x0, y1 - GRAPH_ROW * 0.7); pen.bezierCurveTo(x0, y1 - 4, x1, y1 - GRAPH_ROW * 0.7, x1, y1); }
      pen.stroke();
    }
    for (let n = first; n < last; n += 1) paintRow(pen, rows[n], n, middle(n), width, inks);
  });

  const paintRow = (pen, row, n, y, width, inks) => {
    const share = shareOf(row);
    const x = plan.width + 10 + row.depth * 16;
    const right = width - 140 - placeRoom;
    const chosen = isChosen(row);
    pen.textBaseline = "middle";
    if (row.group != null && !row.folded) {
      pen.fillStyle = inks.soft; pen.font = `600 ${FONT}`;
      const shown = fitted(pen, `▾ ${row.group}`, right - x - 8);
      pen.fillText(shown, x, y);
      pen.strokeStyle = inks.line; pen.lineWidth = 1;
      pen.beginPath(); pen.moveTo(Math.min(right, x + pen.measureText(shown).width + 8), y); pen.lineTo(right, y); pen.stroke();
    } else {
      pen.fillStyle = chosen ? inks.mark : inks.soft;
      pen.beginPath(); pen.arc(12 + plan.lane[n] * LANE, y, 3.5, 0, 7); pen.fill();
      const label = row.folded ? `▸ ${row.name} ×${row.to - row.from}` : items[row.item].label;
      const sub = row.folded ? "" : items[row.item].sub;
      pen.font = row.folded ? `600 ${FONT}` : MONO;
      const w = Math.max(90, right - x);
      pen.fillStyle = heat(share, most); rounded(pen, x, y - 10, w, 20, 5); pen.fill();
      pen.strokeStyle = chosen ? inks.mark : inks.line; pen.lineWidth = chosen ? 2 : 1; pen.stroke();
      pen.fillStyle = inks.text;
      const shown = fitted(pen, label, w - 16);
      pen.fillText(shown, x + 8, y + 0.5);
      const after = x + 8 + pen.measureText(shown).width + 12;
      pen.fillStyle = inks.soft; pen.font = FONT;
      pen.fillText(fitted(pen, sub, x + w - after - 8), after, y + 0.5);
    }
    if (n === cursor && document.activeElement === scroller) { pen.strokeStyle = inks.accent; pen.lineWidth = 2; rounded(pen, x - 3, y - 12, right - x + 6, 24, 6); pen.stroke(); }
    pen.font = FONT; pen.fillStyle = inks.soft;
    pen.fillStyle = inks.glow; rounded(pen, right + 12, y - 5, 64, 10, 3); pen.fill();
    pen.fillStyle = inks.mark; if (share > 0.001) { rounded(pen, right + 12, y - 5, Math.max(2, 64 * Math.min(1, share)), 10, 3); pen.fill(); }
    pen.fillStyle = inks.text; pen.fillText(share >= 0.0005 ? showShare(share) : "", right + 82, y + 0.5);
    pen.fillStyle = inks.soft; pen.fillText(fitted(pen, row.item != null ? items[row.item].place : "", placeRoom - 4), right + 132, y + 0.5);
  };

  const toggle = (row) => { if (row.group == null) return; if (folded.has(row.id)) folded.delete(row.id); else folded.add(row.id); layout(); };
  const choose = (row, pin) => {
    if (row.group != null && !row.folded) return;
    const what = { values: [], kernels: [] };
    for (let at = row.from; at < row.to; at += 1) { what.values.push(...(items[at].what.values || [])); what.kernels.push(...(items[at].what.kernels || [])); }
    select(what, { pin, from: root });
  };
  const rowAt = (event) => rows[Math.floor((event.clientY - canvas.getBoundingClientRect().top + scroller.scrollTop - 6) / GRAPH_ROW)];
  const say = (row) => { said.textContent = row ? `${row.group != null ? row.name : items[row.item].label} ${row.group != null ? `(${row.to - row.from} box${row.to - row.from === 1 ? "" : "es"})` : items[row.item].kernel || items[row.item].layer}` : ""; };

  scroller.addEventListener("scroll", () => painting.ask());
  scroller.addEventListener("focus", () => painting.ask());
  scroller.addEventListener("pointermove", (event) => say(rowAt(event)));
  scroller.addEventListener("click", (event) => { const row = rowAt(event); if (!row) return; cursor = rows.indexOf(row); if (row.group != null) toggle(row); else choose(row, true); });
  scroller.addEventListener("dblclick", () => { if (state.kernels.size) show("kernels"); });
  scroller.addEventListener("keydown", (event) => {
    const row = rows[cursor];
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20 }[event.key];
    if (step) { cursor = Math.max(0, Math.min(rows.length - 1, cursor + step)); intoView(); say(rows[cursor]); }
    else if (event.key === "Enter" && row) { if (row.group != null) toggle(row); else choose(row, true); }
    else if (event.key === "ArrowRight" && row?.folded) toggle(row);
    else if (event.key === "ArrowLeft" && row?.group != null && !row.folded) toggle(row);
    else return;
    event.preventDefault();
    painting.ask();
  });
  const intoView = () => {
    const y = cursor * GRAPH_ROW;
    if (y < scroller.scrollTop || y > scroller.scrollTop + scroller.clientHeight - 2 * GRAPH_ROW) scroller.scrollTop = y - scroller.clientHeight / 3;
  };
  const reveal = () => {
    const found = rows.findIndex((row) => (row.item != null || row.folded) && isChosen(row));
    if (found >= 0) { cursor = found; intoView(); }
  };
  onSelect((scroll, from) => { if (state.view !== "graph") return; if (scroll && from !== root) reveal(); painting.ask(); });
  return {
    root, title: "Graph", painting, scroller,
    opened: () => { if (drawn !== `${state.at} ${byKernel}`) rebuild(true); reveal(); painting.ask(); },
    count: () => rows.length,
    unfold: () => unfoldAll.click(),
  };
};
