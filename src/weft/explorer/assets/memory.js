// Memory over time: the arena with the lives of its tensors, and how much is alive at each kernel.

const memoryView = () => {
  const canvas = el("canvas", { class: "memory", role: "img", "aria-label": "Live ranges of tensors in the arena" });
  const told = el("span", { class: "told" });
  const side = el("div", { class: "card" });
  const root = el("div", { class: "view memory-view" }, el("div", { class: "main" }, el("div", { class: "bar" }, told), canvas), side);
  let boxes = [];
  let over = null;

  const facts = () => {
    const { memory, kernels } = program();
    const steps = Math.max(1, kernels.length);
    const live = new Float64Array(steps);
    const own = memory.tensors.filter((tensor) => tensor[1] === "arena");
    for (const [, , , bytes, from, to] of own) for (let at = Math.max(0, from); at <= Math.min(steps - 1, to); at += 1) live[at] += bytes;
    let peak = 0;
    live.forEach((bytes, at) => { if (bytes > live[peak]) peak = at; });
    return { memory, steps, live, own, peak };
  };

  const painting = new Painting(canvas, (pen, width, height, inks) => {
    const { memory, steps, live, own, peak } = facts();
    const [x0, y1, room] = [64, height * 0.68, width - 84];
    const x = (step) => x0 + (step / steps) * room;
    const scale = Math.max(1, memory.arena);
    const y = (offset) => y1 - (offset / scale) * (y1 - 24);
    pen.font = FONT; pen.textBaseline = "middle";
    pen.fillStyle = inks.soft; pen.fillText("arena", 10, 14);
    pen.fillText(showBytes(memory.arena), 10, 30);
    boxes = own.map((tensor) => ({ tensor, x: x(Math.max(0, tensor[4])), w: Math.max(2, x(Math.min(steps, tensor[5] + 1)) - x(Math.max(0, tensor[4])) - 1), y: y(tensor[2] + tensor[3]), h: Math.max(2, y(tensor[2]) - y(tensor[2] + tensor[3]) - 1) }));
    for (const box of boxes) {
      const lit = isTensorLit(box.tensor[0]);
      const [name] = box.tensor;
      const hue = (200 + 47 * [...name].reduce((sum, letter) => sum + letter.charCodeAt(0), 0)) % 360;
      pen.fillStyle = `hsl(${hue} 45% ${isDark() ? 34 : 76}%)`;
      rounded(pen, box.x, box.y, box.w, box.h, 3); pen.fill();
      if (lit || box === over) { pen.strokeStyle = inks.mark; pen.lineWidth = 2; pen.stroke(); pen.lineWidth = 1; }
      if (box.h > 14) { pen.fillStyle = inks.text; pen.fillText(fitted(pen, pen.measureText(`${name} ${showBytes(box.tensor[3])}`).width > box.w - 8 ? name : `${name} ${showBytes(box.tensor[3])}`, box.w - 8), box.x + 4, box.y + box.h / 2); }
    }
    const [y2, y3] = [height - 26, y1 + 36];
    const most = Math.max(1, live[peak]);
    pen.fillStyle = inks.glow; pen.strokeStyle = inks.accent;
    pen.beginPath(); pen.moveTo(x0, y2);
    for (let at = 0; at < steps; at += 1) { const level = y2 - (live[at] / most) * (y2 - y3); pen.lineTo(x(at), level); pen.lineTo(x(at + 1), level); }
    pen.lineTo(x(steps), y2); pen.closePath(); pen.fill(); pen.stroke();
    pen.fillStyle = inks.soft; pen.fillText("alive", 10, y3 + 6); pen.fillText(showBytes(live[peak]), 10, y3 + 22);
    pen.fillText("kernels, in order →", x0, height - 10);
    if (live[peak]) { pen.strokeStyle = inks.mark; pen.setLineDash([4, 4]); pen.beginPath(); pen.moveTo(x(peak + 0.5), 20); pen.lineTo(x(peak + 0.5), y2); pen.stroke(); pen.setLineDash([]); pen.fillStyle = inks.text; pen.fillText("peak", Math.min(x(peak + 0.5) + 6, width - 40), 14); }
    else { pen.fillText("Nothing lives in the arena: every value is an input, a result, or stays inside its kernel.", x0, y1 / 2); }
  });

  // What a tensor is, in the user's words: ops, line and layer of the kernel that makes it.
  const madeBy = (name) => {
    const kernel = program().kernels[index().writers.get(name)];
    return kernel ? [kernel.op, kernel.place, kernel.layer].filter(Boolean).join(" · ") : "";
  };
  const linkTo = (name) => {
    const at = index().writers.get(name);
    return at == null ? name : el("button", { class: "link", title: "Its kernel", onclick: () => { select({ kernels: [at] }, { pin: true }); show("kernels"); } }, name);
  };
  const isTensorLit = (name) => [...state.kernels].some((at) => { const kernel = program().kernels[at]; return kernel.reads.includes(name) || kernel.writes.includes(name); });
  const draw = () => {
    const { memory, live, own, peak } = facts();
    const at = program().kernels[peak];
    const alive = own.filter((tensor) => tensor[4] <= peak && tensor[5] >= peak).sort((a, b) => b[3] - a[3]);
    const bySpace = new Map();
    for (const [, space, , bytes] of memory.tensors) bySpace.set(space, (bySpace.get(space) || 0) + bytes);
    clear(side,
      el("h2", {}, "Memory"),
      el("div", { class: "facts" }, fact("arena", showBytes(memory.arena)), fact("alive at the peak", showBytes(live[peak] || 0), at ? `at ${at.name}` : ""), ...[...bySpace].map(([space, bytes]) => fact(space === "arena" ? "tensors in the arena" : `${space}s`, showBytes(bytes)))),
      alive.length > 0 && el("h3", {}, "Alive at the peak"),
      el("table", { class: "plan" }, alive.slice(0, 40).map((tensor) => el("tr", {}, el("th", {}, linkTo(tensor[0])), el("td", { class: "num" }, showBytes(tensor[3])), el("td", {}, madeBy(tensor[0]), el("div", { class: "soft" }, `kernels ${tensor[4]} to ${tensor[5]}`))))),
      memory.copies.length > 0 && el("h3", {}, "Copies"),
      el("ul", {}, memory.copies.slice(0, 40).map(([before, source, target, bytes, why]) => el("li", {}, `${source} → ${target} before ${before}, ${showBytes(bytes)}: ${why}`))),
      memory.shares.length > 0 && el("h3", {}, "Memory that is reused"),
      el("ul", {}, memory.shares.slice(0, 40).map(([kernel, first, second, why]) => el("li", {}, `${second} takes over ${first} in ${kernel}: ${why}`))));
    painting.ask();
  };
  canvas.addEventListener("pointermove", (event) => {
    const found = boxes.findLast((box) => event.offsetX >= box.x && event.offsetX <= box.x + box.w && event.offsetY >= box.y && event.offsetY <= box.y + box.h) || null;
    if (found === over) return;
    over = found;
    told.textContent = found ? `${found.tensor[0]}: ${showBytes(found.tensor[3])} at ${found.tensor[2]}, from kernel ${found.tensor[4]} to ${found.tensor[5]} · ${madeBy(found.tensor[0])}` : "";
    painting.ask();
  });
  canvas.addEventListener("click", () => {
    if (!over) return;
    const at = program().kernels.findIndex((kernel) => kernel.writes.includes(over.tensor[0]));
    if (at >= 0) select({ kernels: [at] }, { pin: true });
  });
  onSelect(() => { if (state.view === "memory") painting.ask(); });
  return { root, title: "Memory", opened: draw };
};
