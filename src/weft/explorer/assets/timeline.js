// One run in lanes: each thread of a CPU or stream of a GPU, the host, its launches, and the gaps in
// which nothing is computed. Wheel or + and - zoom, dragging or arrows move.

const LANE_HIGH = 38;
const LANE_STEP = 46;
const LEFT = 112;
// Threads take the time themselves, which costs about so much: what is shorter is no gap of theirs.
const LOOK = 1e-5;
// The lane of what hands work to a GPU: it computes nothing itself.
const LAUNCHES = "launches";

// When the run begins and ends, how long each lane is busy, and the gaps; spans come in order.
const layTimeline = ({ spans, lanes }) => {
  const least = lanes.some((name) => name.startsWith("thread")) ? LOOK : 0;
  const busy = [];
  const gaps = [];
  let [end, idle] = [spans.length ? spans[0][1] : 0, 0];
  const begin = end;
  let last = end;
  for (const [, start, seconds, lane] of spans) {
    busy[lane] = (busy[lane] || 0) + seconds;
    last = Math.max(last, start + seconds);
    if (lanes[lane] === LAUNCHES) continue;
    if (start > end + least) { gaps.push([end, start]); idle += start - end; }
    end = Math.max(end, start + seconds);
  }
  return { busy, gaps, idle, extent: [begin, Math.max(last, begin + 1e-9)] };
};

const timelineView = () => {
  const canvas = el("canvas", { class: "timeline", tabindex: 0, role: "img", "aria-label": "Timeline of one run" });
  const told = el("span", { class: "told" });
  const save = el("button", { onclick: () => saveTrace() }, "save for Perfetto");
  const whole = el("button", { onclick: () => { view = null; painting.ask(); } }, "whole run");
  const root = el("div", { class: "view timeline-view" }, el("div", { class: "bar" }, el("p", { class: "hint" }, "Wheel or + − zoom, dragging or arrows move. "), whole, save, told), canvas);
  let view = null;
  let drag = null;

  const spans = () => program().spans;
  const extent = () => laidOut().extent;
  const laidOut = () => {
    const p = program();
    if (!p.laid) p.laid = layTimeline(p);
    return p.laid;
  };
  const laneTop = (lane) => 40 + lane * LANE_STEP;
  const painting = new Painting(canvas, (pen, width, height, inks) => {
    pen.font = FONT; pen.textBaseline = "middle";
    if (!spans().length) { pen.fillStyle = inks.soft; pen.fillText("This program was compiled and not run: there is no timeline.", 20, 40); return; }
    const [from, to] = view || extent();
    const { lanes } = program();
    const x = (seconds) => LEFT + ((seconds - from) / (to - from)) * (width - LEFT - 16);
    const bottom = laneTop(lanes.length) + 26 + layerDepth() * 22;
    paintScale(pen, x, from, to, bottom, inks);
    lanes.forEach((name, lane) => {
      pen.fillStyle = inks.text; pen.fillText(fitted(pen, name, LEFT - 24), 16, laneTop(lane) + LANE_HIGH / 2 - 7);
      pen.fillStyle = inks.soft; pen.fillText(`${showShare(laidOut().busy[lane] / (extent()[1] - extent()[0]))} busy`, 16, laneTop(lane) + LANE_HIGH / 2 + 9);
      pen.fillStyle = inks.page; pen.fillRect(LEFT, laneTop(lane), width - LEFT - 16, LANE_HIGH);
    });
    pen.save();
    pen.beginPath(); pen.rect(LEFT, 0, width - LEFT - 16, height); pen.clip();
    for (const span of spans()) paintSpan(pen, span, x, from, to, inks);
    paintGaps(pen, laneTop(lanes.length), x, from, to, inks);
    paintLayers(pen, laneTop(lanes.length) + 26, x, from, to, inks);
    pen.restore();
    pen.fillStyle = inks.soft;
    pen.fillText(`gaps ${showShare(laidOut().idle / (extent()[1] - extent()[0]))}`, 16, laneTop(lanes.length) + 8);
    if (layerDepth()) pen.fillText("layers", 16, laneTop(lanes.length) + 36);
  });
  const paintScale = (pen, x, from, to, bottom, inks) => {
    const step = 10 ** Math.floor(Math.log10((to - from) / 4));
    pen.strokeStyle = inks.line; pen.fillStyle = inks.soft;
    const every = (x(from + step) - x(from)) < 70 ? Math.ceil(70 / (x(from + step) - x(from))) : 1;
    for (let mark = Math.ceil((from - extent()[0]) / (step * every)) * step * every + extent()[0]; mark <= to; mark += step * every) {
      pen.beginPath(); pen.moveTo(x(mark), 24); pen.lineTo(x(mark), bottom); pen.stroke();
      const label = mark - extent()[0] < step / 2 ? "0" : showSeconds(mark - extent()[0]);
      if (x(mark) + 8 + pen.measureText(label).width < x(to) + 16) pen.fillText(label, x(mark) + 4, 14);
    }
  };
  const paintSpan = (pen, [name, start, seconds, lane], x, from, to, inks) => {
    if (start + seconds < from || start > to) return;
    const { total, time, named } = index();
    const [x0, x1, y] = [Math.max(x(start), LEFT), x(start + seconds), laneTop(lane)];
    const at = named.get(name);
    pen.fillStyle = heat(at == null ? 0 : time(program().kernels[at]) / total);
    rounded(pen, x0, y, Math.max(1, x1 - x0 - 0.5), LANE_HIGH, 3); pen.fill();
    if (at != null && state.kernels.has(at)) { pen.strokeStyle = inks.mark; pen.lineWidth = 2; pen.stroke(); pen.lineWidth = 1; }
    if (x1 - x0 > 34) { pen.fillStyle = inks.text; pen.fillText(fitted(pen, name, x1 - x0 - 8), x0 + 4, y + 12); pen.fillText(fitted(pen, showSeconds(seconds), x1 - x0 - 8), x0 + 4, y + 27); }
  };
  const paintGaps = (pen, top, x, from, to, inks) => {
    pen.fillStyle = inks.soft;
    for (const [start, end] of laidOut().gaps) {
      if (end < from || start > to) continue;
      pen.fillRect(x(start), top + 4, Math.max(1, x(end) - x(start)), 8);
    }
  };
  const layerDepth = () => Math.max(0, ...layerSpans().map(([layer]) => layerParts(layer).length));
  const paintLayers = (pen, first, x, from, to, inks) => {
    for (const [layer, start, end] of layerSpans()) {
      if (end < from || start > to) continue;
      const top = first + (layerParts(layer).length - 1) * 22;
      pen.fillStyle = inks.glow; rounded(pen, x(start), top, Math.max(1, x(end) - x(start) - 0.5), 19, 3); pen.fill();
      if (x(end) - x(start) > 30) { pen.fillStyle = inks.text; pen.fillText(fitted(pen, layerParts(layer).at(-1), x(end) - x(start) - 8), x(start) + 4, top + 10); }
    }
  };
  const layerSpans = () => { const laid = laidOut(); laid.layers = laid.layers || findLayers(); return laid.layers; };
  const findLayers = () => {
    const { named } = index();
    const open = [];
    const done = [];
    for (const [name, start, seconds] of spans()) {
      if (!named.has(name)) continue;
      const parts = layerParts(program().kernels[named.get(name)]?.layer || "");
      let same = 0;
      while (same < open.length && same < parts.length && open[same][0] === parts[same]) same += 1;
      done.push(...open.splice(same).map(([, ...rest]) => rest));
      for (let at = same; at < parts.length; at += 1) open.push([parts[at], parts.slice(0, at + 1).join("."), start, start]);
      for (const each of open) each[3] = Math.max(each[3], start + seconds);
    }
    return [...done, ...open.map(([, ...rest]) => rest)];
  };
  const atEvent = (event) => {
    const [from, to] = view || extent();
    const t = from + ((event.offsetX - LEFT) / (canvas.clientWidth - LEFT - 16)) * (to - from);
    const lane = Math.floor((event.offsetY - laneTop(0)) / LANE_STEP);
    const span = spans().find(([, start, seconds, own]) => own === lane && t >= start && t <= start + seconds);
    return { t, span, gap: lane === program().lanes.length && laidOut().gaps.find(([start, end]) => t >= start && t <= end) };
  };
  // What the host did in a gap: calls that launch, or what nobody took the time of.
  const whyIdle = ([from, to]) => {
    const launches = program().lanes.indexOf(LAUNCHES);
    const inside = spans().filter(([, start, seconds, lane]) => lane === launches && start < to && start + seconds > from);
    const taken = inside.reduce((sum, [, start, seconds]) => sum + Math.min(to, start + seconds) - Math.max(from, start), 0);
    return taken ? `the host launches for ${showSeconds(taken)} of it` : "the host prepares what comes next";
  };
  const zoom = (factor, t) => { const [from, to] = view || extent(); view = [t - (t - from) * factor, t + (to - t) * factor]; painting.ask(); };
  // As weft.profile writes it: kernels one after the other are process 1, lanes process 2.
  const saveTrace = () => {
    const p = program();
    const { named } = index();
    const called = (what, pid, tid, name) => ({ name: what, ph: "M", pid, tid, args: { name } });
    const event = (name, start, seconds, pid, tid) => {
      const kernel = p.kernels[named.get(name)];
      const from = kernel ? { op: kernel.op, line: kernel.place, file: kernel.file, layer: kernel.layer } : {};
      // Readers cut times to whole nanoseconds: so the next span never begins inside this one.
      const [began, ended] = [start, start + seconds].map((t) => Math.round(t * 1e9));
      return { name, cat: "weft", ph: "X", ts: began / 1e3, dur: Math.max(0, ended - began - 1) / 1e3, pid, tid, args: { program: p.name, ...from } };
    };
    let end = 0;
    const kernels = p.kernels.filter((kernel) => kernel.seconds > 0).map((kernel) => { end += kernel.seconds; return event(kernel.name, end - kernel.seconds, kernel.seconds, 1, 1); });
    const names = [called("process_name", 1, 0, "kernels, one after the other"), called("process_name", 2, 0, "one run, by threads and streams"), ...p.lanes.map((name, lane) => called("thread_name", 2, lane + 2, name))];
    const laps = spans().map(([name, start, seconds, lane]) => event(name, start, seconds, 2, lane + 2));
    const url = URL.createObjectURL(new Blob([JSON.stringify({ traceEvents: [...names, ...kernels, ...laps] })], { type: "application/json" }));
    el("a", { href: url, download: "trace.json" }).click();
  };
  canvas.addEventListener("wheel", (event) => { event.preventDefault(); zoom(event.deltaY > 0 ? 1.25 : 0.8, atEvent(event).t); }, { passive: false });
  const pan = (by) => { const [from, to] = view || extent(); view = [from + by * (to - from), to + by * (to - from)]; painting.ask(); };
  canvas.addEventListener("keydown", (event) => {
    const [from, to] = view || extent();
    if (event.key === "+") zoom(0.7, (from + to) / 2);
    else if (event.key === "-") zoom(1.4, (from + to) / 2);
    else if (event.key === "ArrowLeft") pan(-0.1);
    else if (event.key === "ArrowRight") pan(0.1);
    else if (event.key === "Home") { view = null; painting.ask(); }
  });
  canvas.addEventListener("pointerdown", (event) => { drag = [event.offsetX, view || extent(), false]; });
  canvas.addEventListener("pointermove", (event) => {
    const { span, gap } = atEvent(event);
    const kernel = span && program().kernels[index().named.get(span[0])];
    told.textContent = span ? `${span[0]} ${showSeconds(span[2])} ${kernel ? `${kernel.op} ${kernel.place} ${kernel.layer}` : ""}` : gap ? `nothing runs for ${showSeconds(gap[1] - gap[0])}: ${whyIdle(gap)}` : "";
    if (!drag || !(event.buttons & 1)) return;
    const [from, to] = drag[1];
    const by = ((drag[0] - event.offsetX) / (canvas.clientWidth - LEFT - 16)) * (to - from);
    if (Math.abs(drag[0] - event.offsetX) > 3) drag[2] = true;
    view = [from + by, to + by];
    painting.ask();
  });
  canvas.addEventListener("pointerup", (event) => { const moved = drag?.[2]; drag = null; const at = index().named.get(atEvent(event).span?.[0]); if (!moved && at != null) select({ kernels: [at] }, { pin: true }); });
  onSelect(() => { if (state.view === "timeline") painting.ask(); });
  return { root, title: "Timeline", opened: () => { view = null; painting.ask(); } };
};
