// Editing a stage, on a page that is served: its text is compiled again, and what is refused is
// shown beside its line.

const editTools = (pane) => {
  const stage = program().stages.find((each) => each.name === pane.stage);
  if (!state.data.token || !stage?.edit) return [];
  return [el("button", { class: "edit", onclick: () => openEditor(pane, stage) }, "edit")];
};

const openEditor = (pane, stage) => {
  const area = el("textarea", { class: "editor", spellcheck: "false", "aria-label": `Text of ${stage.name}` });
  area.value = stage.text.join("\n");
  const problem = el("p", { class: "problem", role: "alert" });
  problem.hidden = true;
  const close = () => { box.remove(); pane.scroller.hidden = false; };
  const compile = el("button", { class: "compile", onclick: () => submit() }, "compile");
  const box = el("div", { class: "editing" }, el("div", { class: "bar" }, compile, el("button", { onclick: close }, "cancel"), el("span", { class: "soft" }, "Ctrl+Enter compiles")), el("div", { class: "written" }, area, problem));
  pane.scroller.hidden = true;
  pane.root.append(box);
  area.focus();
  area.setSelectionRange(0, 0);
  area.scrollTop = 0;
  let at = stage.text.findIndex((_, n) => litness(marksOf(stage).get(n)));
  if (at > 0) area.scrollTop = at * ROW - 60;
  area.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(); event.stopPropagation(); });

  const refuse = (answer) => {
    problem.hidden = false;
    const line = answer.line || lineOf(area.value, answer.error, stage.text);
    clear(problem, line ? el("b", {}, `line ${line}: `) : null, answer.error);
    if (!line) { at = 0; follow(); return; }
    const start = area.value.split("\n").slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
    area.focus();
    area.setSelectionRange(start, start + area.value.split("\n")[line - 1].length);
    area.scrollTop = (line - 4) * ROW;
    at = line;
    follow();
  };
  // What is wrong stands below its line, and goes with it.
  const follow = () => problem.style.setProperty("--y", `${at * ROW + 8 - area.scrollTop}px`);
  area.addEventListener("scroll", follow);
  area.addEventListener("input", () => { problem.hidden = true; });
  const submit = async () => {
    if (area.value === stage.text.join("\n")) {
      problem.hidden = false;
      at = 0;
      follow();
      clear(problem, "the text is as it was: change something, or cancel");
      return;
    }
    compile.disabled = true;
    compile.textContent = "compiling …";
    try {
      const answer = await (await fetch("compile", { method: "POST", headers: { "X-Weft-Token": state.data.token, "Content-Type": "application/json" }, body: JSON.stringify({ program: state.at, stage: stage.name, text: area.value }) })).json();
      if (answer.error) { refuse(answer); return; }
      const before = state.at;
      close();
      state.data.programs.push(...answer.programs);
      state.other = before;
      switchTo(state.data.programs.length - answer.programs.length);
    } catch (error) {
      refuse({ error: `the server does not answer: ${error.message}` });
    } finally {
      compile.disabled = false;
      compile.textContent = "compile";
    }
  };
};

// Where an error is: the line it names, that of the instruction or function it quotes, or that with
// the rarest word of those it has in common with the text, as a name in quotes; of two the one that is
// said last. What stands in brackets at its end is advice, and about no line. The text was in order
// as it was, so that lines which somebody changed come before all others.
const lineOf = (text, error, before = []) => {
  const told = /\bline (\d+)/.exec(error);
  if (told) return Number(told[1]);
  const lines = text.split("\n");
  const quoted = /(%\d+ = )/.exec(error)?.[1] ?? /@[\w.]+/.exec(error)?.[0].replace("@", "func @").concat("(");
  const at = quoted ? lines.findIndex((line) => line.trimStart().startsWith(quoted)) : -1;
  if (at >= 0) return at + 1;
  const known = new Set(before);
  const changed = lines.map((line, n) => [line, n]).filter(([line]) => !known.has(line));
  const first = changed.length ? changed[0][1] + 1 : 0;
  return wordOf(changed, error) || first || wordOf(lines.map((line, n) => [line, n]), error);
};

const wordOf = (lines, error) => {
  let best = [0, Infinity];
  for (const [word] of error.replace(/\s\([^()]*\)$/, "").matchAll(/\w{2,}/g)) {
    const hits = lines.filter(([line]) => line.includes(`"${word}"`));
    if (hits.length && hits.length <= best[1]) best = [hits[0][1] + 1, hits.length];
  }
  return best[0];
};
