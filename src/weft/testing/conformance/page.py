"""The results of a run as one HTML page: the matrix in colour, and every failure in full.

The page needs nothing besides itself: styles and the few lines of script are inside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

from weft.foundation.errors import UserError
from weft.testing.conformance.matrix import (
    COLUMNS,
    LISTS,
    Cell,
    Matrix,
    State,
    merged,
    short,
    shown_states,
)
from weft.testing.conformance.run import Failure, Outcome, Result

STYLE = """
:root { --ink: #1d2330; --soft: #667085; --line: #e3e6ec; --paper: #ffffff; --wash: #f6f7f9;
  --pass: #2e9e5b; --decomposed: #2a8fb5; --fail: #d63f3f; --partial: #d9a321;
  --unimplemented: #e9c46a; --undefined: #eef0f3; --mark: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e7e9ee; --soft: #98a1b3; --line: #2c3340;
  --paper: #14181f; --wash: #1b2029; --undefined: #20262f; --unimplemented: #c9a13f; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.5rem 5rem; max-width: 72rem; background: var(--paper);
  color: var(--ink); font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.75rem; margin: 0; letter-spacing: -0.01em; }
h2 { font-size: 1.15rem; margin: 2.75rem 0 0.75rem; }
.soft { color: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: 0.75rem;
  margin: 1.5rem 0 0.75rem; }
.tile { background: var(--wash); border-radius: 10px; padding: 0.8rem 1rem;
  border-left: 5px solid var(--tone); }
.tile b { display: block; font-size: 1.6rem; line-height: 1.2; font-variant-numeric: tabular-nums; }
.bar { display: flex; height: 8px; border-radius: 4px; overflow: hidden; background: var(--wash); }
.bar i { display: block; height: 100%; }
.legend { display: flex; flex-wrap: wrap; gap: 0.3rem 1.4rem; margin: 0.9rem 0; font-size: 13px;
  color: var(--soft); }
.legend div { display: inline-flex; align-items: center; gap: 0.45rem; }
table.matrix { border-collapse: separate; border-spacing: 2px; font-size: 13px; }
.matrix thead th { position: sticky; top: 0; background: var(--paper); z-index: 1; padding: 6px 0;
  font: 600 11px/1.15 ui-monospace, SFMono-Regular, Menlo, monospace; color: var(--soft);
  width: 38px; }
.matrix th.op { text-align: left; font-weight: 400; padding: 0 0.9rem 0 0; white-space: nowrap;
  font-family: ui-monospace, SFMono-Regular, Menlo, monospace; font-size: 12.5px; }
.matrix th.family { text-align: left; padding: 0.9rem 0 0.15rem; font-weight: 650; }
.matrix tr:hover th.op { color: var(--decomposed); }
.mark { display: block; width: 38px; height: 21px; border-radius: 4px; color: var(--mark);
  text-align: center; line-height: 21px; font-size: 12px; text-decoration: none;
  font-weight: 700; }
.pass { background: var(--pass); } .decomposed { background: var(--decomposed); }
.fail { background: var(--fail); } .partial { background: var(--partial); }
.unimplemented { background: var(--unimplemented); color: #6b5310; }
.not_run { border: 1px dashed var(--line); }
.undefined { background: var(--undefined); color: transparent; }
a.mark:hover { outline: 2px solid var(--ink); }
.chips { display: flex; flex-wrap: wrap; gap: 0.4rem; }
.chip { display: inline-flex; align-items: center; gap: 0.5rem;
  padding: 0.2rem 0.65rem 0.2rem 0.25rem; border-radius: 7px; background: var(--wash);
  font: 13px ui-monospace, SFMono-Regular, Menlo, monospace; color: inherit;
  text-decoration: none; }
.chip .mark { width: 21px; }
#find { width: 100%; max-width: 26rem; padding: 0.5rem 0.75rem; font: inherit; color: inherit;
  border: 1px solid var(--line); border-radius: 8px; background: var(--wash); }
details { border: 1px solid var(--line); border-radius: 9px; margin: 0.5rem 0; overflow: hidden; }
details > summary { cursor: pointer; padding: 0.6rem 0.9rem; background: var(--wash);
  overflow-wrap: anywhere; }
details[open] > summary { border-bottom: 1px solid var(--line); }
summary code { font-weight: 650; }
.body { padding: 0.4rem 1rem 1rem; }
h4 { font-size: 11px; text-transform: uppercase; letter-spacing: 0.07em; color: var(--soft);
  margin: 0.9rem 0 0.3rem; }
code, pre { font-family: ui-monospace, SFMono-Regular, Menlo, monospace; font-size: 12.5px; }
pre { margin: 0; padding: 0.7rem 0.9rem; background: var(--wash); border-radius: 7px;
  overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
table.wrong { border-collapse: collapse;
  font: 12.5px ui-monospace, SFMono-Regular, Menlo, monospace; }
.wrong th, .wrong td { text-align: left; padding: 0.2rem 1.4rem 0.2rem 0; vertical-align: top; }
.wrong th { color: var(--soft); font-weight: 500; border-bottom: 1px solid var(--line); }
.got { color: var(--fail); }
@media (max-width: 62rem) { .wide { overflow-x: auto; } .matrix thead th { position: static; } }
"""
SCRIPT = """
const find = document.getElementById("find");
const cases = [...document.querySelectorAll("details.case")];
if (find) find.addEventListener("input", () => {
  const wanted = find.value.toLowerCase();
  for (const item of cases) item.hidden = !item.dataset.find.includes(wanted);
});
function reveal() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target && target.tagName === "DETAILS") target.open = true;
}
addEventListener("hashchange", reveal);
reveal();
"""


def write_page(path: Path, backend: str, results: Sequence[Result], note: str = "") -> None:
    """Write the page to a file."""
    try:
        path.write_text(page(backend, results, note), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None


def page(backend: str, results: Sequence[Result], note: str = "") -> str:
    """The page as text. `note` stands beside the number of cases."""
    matrix = Matrix.of(results)
    first = _first_failures(results)
    parts = [
        _page_head(backend, results, matrix, note),
        _matrix(matrix, first),
        *(_chip_list(family, rows, first) for family, rows in matrix.families() if family in LISTS),
        _failures([r for r in results if r.outcome is Outcome.FAIL]),
        _list_unimplemented([r for r in results if r.outcome is Outcome.UNIMPLEMENTED]),
    ]
    title = f"PTIR conformance: {escape(backend)}"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + f"\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _first_failures(results: Iterable[Result]) -> dict[tuple[str, str, str | None], str]:
    """Where the failures of each cell begin: the anchor of its first one."""
    first: dict[tuple[str, str, str | None], str] = {}
    for result in results:
        if result.outcome is Outcome.FAIL:
            first.setdefault((result.family, result.row, result.dtype), _anchor(result.id))
            first.setdefault((result.family, result.row, "any"), _anchor(result.id))
    return first


def _anchor(case: str) -> str:
    return "case-" + re.sub(r"[^A-Za-z0-9_.=-]+", "-", case)


# -- the summary ---------------------------------------------------------------------------------


def _page_head(backend: str, results: Sequence[Result], matrix: Matrix, note: str) -> str:
    total = matrix.total
    plain = total.passed - total.decomposed
    tiles = [
        ("pass", total.passed, "pass"),
        ("fail", total.failed, "fail"),
        ("unimplemented", total.unimplemented, "unimplemented"),
        ("decomposed", total.decomposed, "of the passes decomposed"),
    ]
    shares = [
        ("pass", plain),
        ("decomposed", total.decomposed),
        ("unimplemented", total.unimplemented),
        ("fail", total.failed),
    ]
    whole = max(len(results), 1)
    seconds = sum(result.seconds for result in results)
    return (
        f"<header><h1>{escape(backend)}</h1>"
        f'<div class="soft">PTIR conformance: {len(results):,} cases in {seconds:.1f} s'
        f"{escape(f', {note}' if note else '')}</div></header>\n"
        '<div class="tiles">'
        + "".join(
            f'<div class="tile" style="--tone: var(--{tone})"><b>{count:,}</b>{label}</div>'
            for tone, count, label in tiles
        )
        + '</div>\n<div class="bar">'
        + "".join(
            f'<i class="{tone}" style="width:{100 * count / whole:.3f}%"></i>'
            for tone, count in shares
        )
        + "</div>"
    )


def _legend(matrix: Matrix) -> str:
    shown = shown_states(matrix)
    items = "".join(
        f"<div>{_mark_html(state, '')}{escape(state.meaning)}</div>"
        for state in State
        if state in shown
    )
    return f'<div class="legend">{items}</div>'


def _mark_html(state: State, title: str, link: str | None = None) -> str:
    name = state.name.lower()
    hint = f' title="{escape(title)}"' if title else ""
    if link:
        return f'<a class="mark {name}" href="#{escape(link)}"{hint}>{state.symbol}</a>'
    return f'<span class="mark {name}"{hint}>{state.symbol}</span>'


# -- the matrix ----------------------------------------------------------------------------------

Rows = dict[str, dict[str | None, Cell]]
Anchors = dict[tuple[str, str, str | None], str]


def _matrix(matrix: Matrix, first: Anchors) -> str:
    body = list(_matrix_rows(matrix, first))
    if not body:
        return ""
    heads = "".join(
        f'<th scope="col" title="{name}">{"<br>".join(short(name))}</th>' for name in COLUMNS
    )
    return (
        f"<h2>Ops by dtype</h2>\n{_legend(matrix)}\n"
        '<div class="wide"><table class="matrix">'
        f"<thead><tr><th></th>{heads}</tr></thead>\n<tbody>\n"
        + "\n".join(body)
        + "\n</tbody></table></div>"
    )


def _matrix_rows(matrix: Matrix, first: Anchors) -> Iterator[str]:
    for family, rows in matrix.families():
        if family in LISTS:
            continue
        name = escape(family.replace("_", " "))
        yield f'<tr><th class="family" colspan="{len(COLUMNS) + 1}">{name}</th></tr>'
        for row in rows:
            cells = (_cell(matrix, family, row, column, first) for column in COLUMNS)
            marks = "".join(f"<td>{cell}</td>" for cell in cells)
            yield f'<tr><th class="op" scope="row">{escape(row)}</th>{marks}</tr>'


def _cell(matrix: Matrix, family: str, row: str, column: str, first: Anchors) -> str:
    state = matrix.state(family, row, column)
    cell = matrix.rows[family, row].get(column)
    counts = state.meaning if cell is None else cell.summary
    return _mark_html(state, f"{row} {column}: {counts}", first.get((family, row, column)))


def _chip_list(family: str, rows: Rows, first: Anchors) -> str:
    chips = []
    for row, cells in rows.items():
        cell = merged(cells.values())
        link = first.get((family, row, "any"))
        tag = f'a href="#{escape(link)}"' if link else "span"
        end = "a" if link else "span"
        mark = _mark_html(cell.state, cell.summary)
        count = cell.passed + cell.failed + cell.unimplemented
        chips.append(
            f'<{tag} class="chip">{mark}{escape(row)} <span class="soft">{count}</span></{end}>'
        )
    return f'<h2>{escape(family.capitalize())}</h2>\n<div class="chips">{"".join(chips)}</div>'


# -- failures ------------------------------------------------------------------------------------


def _failures(failed: Sequence[Result]) -> str:
    if not failed:
        return ""
    items = "\n".join(_show_failed(result) for result in failed)
    return (
        f"<h2>{len(failed):,} failures</h2>\n"
        '<input id="find" type="search" placeholder="Filter by id or reason">\n' + items
    )


def _show_failed(result: Result) -> str:
    anchor = escape(_anchor(result.id))
    words = escape(f"{result.id} {result.reason}".lower())
    detail = _detail(result.failure) if result.failure is not None else ""
    return (
        f'<details class="case" id="{anchor}" data-find="{words}"><summary>'
        f'<code>{escape(result.id)}</code><br><span class="soft">{escape(result.reason)}</span>'
        f'</summary><div class="body">{detail}</div></details>'
    )


def _detail(failure: Failure) -> str:
    parts = []
    if failure.elements:
        parts.append(f"<h4>Wrong elements</h4>{_elements_table(failure)}")
    if failure.program:
        parts.append(f"<h4>Program</h4><pre>{escape(failure.program)}</pre>")
    for name, lines in (
        ("Inputs", failure.inputs),
        ("Expected", failure.expected),
        ("Got", failure.got),
    ):
        if lines:
            parts.append(f"<h4>{name}</h4><pre>{escape(chr(10).join(lines))}</pre>")
    return "".join(parts)


def _elements_table(failure: Failure) -> str:
    names = ["index", "operands", "expected", "got", "off by"]
    rows = [(e.index, e.operands, e.expected, e.got, e.difference) for e in failure.elements]
    kept = [i for i in range(len(names)) if any(row[i] for row in rows)]
    head = "".join(f"<th>{names[i]}</th>" for i in kept)
    body = "".join(
        "<tr>"
        + "".join(f'<td class="{names[i].split()[0]}">{escape(row[i])}</td>' for i in kept)
        + "</tr>"
        for row in rows
    )
    return f'<table class="wrong"><tr>{head}</tr>{body}</table>'


def _list_unimplemented(results: Sequence[Result]) -> str:
    """What is missing, by the reason the backend gave."""
    if not results:
        return ""
    reasons: dict[str, list[str]] = {}
    for result in results:
        reasons.setdefault(_reason(result.reason), []).append(result.id)
    items = "\n".join(
        f"<details><summary>{escape(reason)} "
        f'<span class="soft">{len(ids):,} cases</span></summary>'
        f'<div class="body"><pre>{escape(chr(10).join(ids))}</pre></div></details>'
        for reason, ids in sorted(reasons.items(), key=lambda item: -len(item[1]))
    )
    return f"<h2>{len(results):,} unimplemented</h2>\n{items}"


def _reason(sentence: str) -> str:
    """The reason without the place, which differs from case to case."""
    return re.split(r"; it is %| in function @| in region \^", sentence)[0]
