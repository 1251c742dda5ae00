// One run: kernels one after the other. Wheel or + and - zoom, dragging moves.

const timelineView = () => {
  const canvas = el("canvas", { class: "timeline", tabindex: 0, role: "img", "aria-label": "Timeline of one run" });
  const told = el("span", { class: "told" });
  const save = el("button", { onclick: () => saveTrace() }, "save for Perfetto");
  const whole = el("button", { onclick: () => { view = null; painting.ask(); } }, "whole run");
  const root = el("div", { class: "view timeline-view" }, el("div", { class: "bar" }, el("p", { class: "hint" }, "Wheel zooms, dragging moves. "), whole, save, told), canvas);
  let view = null;
  let drag = null;

  const spans = () => program().spans;
  const extent = () => { const all = spans(); return all.length ? [all[0][1], all.at(-1)[1] + all.at(-1)[2]] : [0, 1]; };
  const painting = new Painting(canvas, (pen, width, height, inks) => {
    const all = spans();
    pen.font = FONT; pen.textBaseline = "middle";
    if (!all.length) { pen.fillStyle = inks.soft; pen.fillText("This program was compiled and not run: there is no timeline.", 20, 40); return; }
    const [from, to] = view || extent();
    const { total, time, named } = index();
    const x = (seconds) => 16 + ((seconds - from) / (to - from)) * (width - 32);
    const step = 10 ** Math.floor(Math.log10((to - from) / 4));
    pen.strokeStyle = inks.line; pen.fillStyle = inks.soft;
    for (let mark = Math.ceil(from / step) * step; mark <= to; mark += step) {
      pen.beginPath(); pen.moveTo(x(mark), 24); pen.lineTo(x(mark), height - 10); pen.stroke();
      pen.fillText(showSeconds(mark - extent()[0]), x(mark) + 4, 14);
    }
    const y = 40;
    for (const [name, start, seconds] of all) {
      if (start + seconds < from || start > to) continue;
      const [x0, x1] = [x(start), x(start + seconds)];
      const at = named.get(name);
      pen.fillStyle = heat(at == null ? 0 : time(program().kernels[at]) / total);
      rounded(pen, x0, y, Math.max(1, x1 - x0 - 0.5), 44, 3); pen.fill();
      if (at != null && state.kernels.has(at)) { pen.strokeStyle = inks.mark; pen.lineWidth = 2; pen.stroke(); pen.lineWidth = 1; }
      if (x1 - x0 > 34) { pen.fillStyle = inks.text; pen.fillText(fitted(pen, name, x1 - x0 - 8), x0 + 4, y + 15); pen.fillStyle = inks.soft; pen.fillText(fitted(pen, showSeconds(seconds), x1 - x0 - 8), x0 + 4, y + 31); }
    }
    let last = 130;
    pen.fillStyle = inks.soft; pen.fillText("layers", 16, last - 14);
    for (const [layer, start, end] of layerSpans()) {
      if (end < from || start > to) continue;
      const depth = layerParts(layer).length;
      const top = last + (depth - 1) * 22;
      pen.fillStyle = inks.glow; rounded(pen, x(start), top, Math.max(1, x(end) - x(start) - 0.5), 19, 3); pen.fill();
      if (x(end) - x(start) > 30) { pen.fillStyle = inks.text; pen.fillText(fitted(pen, layerParts(layer).at(-1), x(end) - x(start) - 8), x(start) + 4, top + 10); }
    }
  });
  const layerSpans = () => {
    const { named } = index();
    const open = [];
    const done = [];
    for (const [name, start, seconds] of spans()) {
      const parts = layerParts(program().kernels[named.get(name)]?.layer || "");
      let same = 0;
      while (same < open.length && same < parts.length && open[same][0] === parts[same]) same += 1;
      done.push(...open.splice(same).map(([, ...rest]) => rest));
      for (let at = same; at < parts.length; at += 1) open.push([parts[at], parts.slice(0, at + 1).join("."), start, start]);
      for (const each of open) each[3] = start + seconds;
    }
    return [...done, ...open.map(([, ...rest]) => rest)];
  };
  const atEvent = (event) => { const [from, to] = view || extent(); const t = from + ((event.offsetX - 16) / (canvas.clientWidth - 32)) * (to - from); return { t, span: spans().find(([, start, seconds]) => t >= start && t <= start + seconds) }; };
  const zoom = (factor, t) => { const [from, to] = view || extent(); view = [t - (t - from) * factor, t + (to - t) * factor]; painting.ask(); };
  const saveTrace = () => {
    const { named } = index();
    const events = spans().map(([name, start, seconds]) => { const kernel = program().kernels[named.get(name)]; return { name, cat: "weft", ph: "X", ts: start * 1e6, dur: seconds * 1e6, pid: 1, tid: 1, args: kernel ? { op: kernel.op, line: kernel.place, layer: kernel.layer } : {} }; });
    const url = URL.createObjectURL(new Blob([JSON.stringify({ traceEvents: events })], { type: "application/json" }));
    el("a", { href: url, download: "trace.json" }).click();
  };
  canvas.addEventListener("wheel", (event) => { event.preventDefault(); zoom(event.deltaY > 0 ? 1.25 : 0.8, atEvent(event).t); }, { passive: false });
  canvas.addEventListener("keydown", (event) => { const [from, to] = view || extent(); if (event.key === "+") zoom(0.7, (from + to) / 2); if (event.key === "-") zoom(1.4, (from + to) / 2); });
  canvas.addEventListener("pointerdown", (event) => { drag = [event.offsetX, view || extent(), false]; });
  canvas.addEventListener("pointermove", (event) => {
    const { span } = atEvent(event);
    const kernel = span && program().kernels[index().named.get(span[0])];
    told.textContent = span ? `${span[0]} ${showSeconds(span[2])} ${kernel ? `${kernel.op} ${kernel.place} ${kernel.layer}` : ""}` : "";
    if (!drag || !(event.buttons & 1)) return;
    const [from, to] = drag[1];
    const by = ((drag[0] - event.offsetX) / (canvas.clientWidth - 32)) * (to - from);
    if (Math.abs(drag[0] - event.offsetX) > 3) drag[2] = true;
    view = [from + by, to + by];
    painting.ask();
  });
  canvas.addEventListener("pointerup", (event) => { const moved = drag?.[2]; drag = null; const at = index().named.get(atEvent(event).span?.[0]); if (!moved && at != null) select({ kernels: [at] }, { pin: true }); });
  onSelect(() => { if (state.view === "timeline") painting.ask(); });
  return { root, title: "Timeline", opened: () => { view = null; painting.ask(); } };
};
