// Two compilations side by side: kernels matched by what they come from, and what differs.

const compareView = () => {
  const pick = (label) => el("select", { "aria-label": label, onchange: () => draw() });
  const [first, second] = [pick("The one"), pick("The other")];
  const body = el("div", { class: "compared" });
  const root = el("div", { class: "view compare" }, el("div", { class: "bar" }, first, el("span", {}, "against"), second), body);

  const matched = (one, other) => {
    const key = (kernel) => [kernel.layer, kernel.op, kernel.place].join("\n");
    const left = new Map();
    other.kernels.forEach((kernel, at) => { const k = key(kernel); if (!left.has(k)) left.set(k, []); left.get(k).push(at); });
    const used = new Set();
    const pairs = one.kernels.map((kernel) => {
      const at = left.get(key(kernel))?.shift() ?? other.kernels.findIndex((each, n) => !used.has(n) && each.name === kernel.name && !left.get(key(each))?.includes(n));
      if (at >= 0) used.add(at);
      return [kernel, at >= 0 ? other.kernels[at] : null];
    });
    other.kernels.forEach((kernel, at) => { if (!used.has(at)) pairs.push([null, kernel]); });
    return pairs;
  };
  // The kernel of another compilation that has most of a kernel's instructions.
  const homeOf = (kernel, from, to) => {
    const { byId, kernelsOf } = index(to);
    const same = (id) => ["1", "3", "4", "5"].every((at) => index(from).byId.get(id)?.[at] === byId.get(id)?.[at]);
    const counts = new Map();
    for (const id of kernel.values) if (same(id)) for (const at of kernelsOf.get(id) || []) counts.set(at, (counts.get(at) || 0) + 1);
    const best = [...counts].sort((a, b) => b[1] - a[1])[0];
    return best ? to.kernels[best[0]] : null;
  };
  const priced = (choice, chosen, other) => (choice?.apart ? `: ${showSeconds(choice[chosen])} instead of ${showSeconds(choice[other])}, as estimated` : "");
  // Why a kernel is in one of two compilations alone: which kernel of the other has its work, and
  // what decided that.
  const whyAlone = (kernel, from, to, isFirst) => {
    const home = homeOf(kernel, from, to);
    const about = (choice, ids) => choice.ids.some((id) => ids.includes(id));
    if (!home) return isFirst ? "gone: no kernel there has an instruction of it" : "only here: no kernel there has an instruction of it";
    const taken = (inside, ids) => inside.choices.find((choice) => choice.kind === "inside" && about(choice, ids));
    const stored = (apart) => apart.choices.find((choice) => choice.kind === "stored");
    if (home.values.length >= kernel.values.length) return `${isFirst ? "part of" : "was part of"} ${home.name}${isFirst ? priced(taken(home, kernel.values), "together", "apart") : stored(kernel)?.why ? `: ${stored(kernel).why}` : ""}`;
    return isFirst ? `split: most of it is ${home.name}${stored(home)?.why ? `, ${stored(home).why}` : ""}` : `has ${home.name} and more in it${priced(taken(kernel, home.values), "together", "apart")}`;
  };
  const changes = (a, b) => {
    if (!a || !b) return [];
    const then = new Map(a.fields.map(([name, value]) => [name, value]));
    const found = b.fields.filter(([name, value]) => then.get(name) !== value).map(([name, value]) => `${name}: ${then.get(name) ?? "–"} → ${value}`);
    if (a.plan !== b.plan) found.unshift(`plan: ${a.plan || "–"} → ${b.plan || "–"}`);
    if (a.nest !== b.nest) found.push("computes something else");
    return found;
  };
  const totals = (p) => {
    const { total } = index(p);
    const sum = (field) => p.kernels.reduce((all, kernel) => all + kernel[field], 0);
    return { "time of all kernels": [total, showSeconds], kernels: [p.kernels.length, String], operations: [sum("flops"), showCount], "bytes moved": [sum("bytes"), showBytes], arena: [p.memory.arena, showBytes] };
  };
  const draw = () => {
    const [one, other] = [state.data.programs[first.value], state.data.programs[second.value]];
    if (!one || !other) return;
    const [a, b] = [totals(one), totals(other)];
    const ratio = (x, y) => (x && y ? `${(y / x).toFixed(2)}×` : "");
    const tuned = (y) => (other.races[y?.key]?.told ? [other.races[y.key].told] : []);
    const pairs = matched(one, other).map(([x, y]) => [x, y, changes(x, y)]).map(([x, y, told]) => [x, y, told.length ? [...told, ...tuned(y)] : told]);
    const cost = ([x, y]) => Math.max(x ? index(one).time(x) : 0, y ? index(other).time(y) : 0);
    pairs.sort((x, y) => cost(y) - cost(x));
    const heads = (...both) => both.map((p) => el("th", {}, one.name === other.name ? titleOf(p) : p.name));
    const cell = (kernel, p) => el("td", {}, kernel ? [el("b", {}, kernel.name), " ", showSeconds(index(p).time(kernel))] : "–");
    clear(body,
      el("table", { class: "totals" }, el("tr", {}, el("th", {}), heads(one, other), el("th", {})),
        Object.keys(a).map((name) => el("tr", {}, el("th", {}, name), el("td", {}, a[name][1](a[name][0])), el("td", {}, b[name][1](b[name][0])), el("td", {}, ratio(a[name][0], b[name][0]))))),
      el("table", { class: "pairs" }, el("tr", {}, heads(one, other), el("th", {}, "time"), el("th", {}, "ops, line, layer"), el("th", {}, "what changed")),
        pairs.slice(0, 300).map(([x, y, told]) => el("tr", { class: !x || !y ? "lone" : told.length ? "changed" : "" }, cell(x, one), cell(y, other),
          el("td", {}, x && y ? ratio(index(one).time(x), index(other).time(y)) : ""),
          el("td", { class: "soft" }, [(x || y).op, (x || y).place, (x || y).layer].filter(Boolean).join(" · ")),
          el("td", {}, !x ? whyAlone(y, other, one, false) : !y ? whyAlone(x, one, other, true) : told.join("; ") || "nothing")))));
  };
  return {
    root, title: "Compare",
    opened: () => {
      const all = state.data.programs;
      const options = (chosen) => all.map((p, at) => el("option", { value: at, selected: at === chosen }, titleOf(p)));
      const before = state.other ?? 0;
      clear(first, options(before));
      clear(second, options(state.at === before ? (before + 1) % all.length : state.at));
      draw();
    },
  };
};
