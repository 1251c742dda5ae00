"""The table, the CSV and the roofline plot of the GPU benchmark, from its records."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

Record = Mapping[str, Any]
CAP: Final = 1.25
"""What a ratio counts at most in a geomean."""
UNRANKED: Final = frozenset({"weft", "plain cublas"})
"""Candidates that are no peers: ourselves, and work without its epilogue."""
LARGE: Final = 256 << 20
PEAK_FLOPS: Final = 790e12
WIDTH, HEIGHT, MARGIN = 900, 600, 60


def best_peer(record: Record) -> tuple[str, float] | None:
    """The fastest peer of a line."""
    peers = {name: us for name, us in record["us"].items() if name not in UNRANKED}
    return min(peers.items(), key=lambda pair: pair[1]) if peers else None


def ratio(record: Record) -> float | None:
    """The best peer's time over ours."""
    peer, ours = best_peer(record), record["us"].get("weft")
    return None if peer is None or ours is None else float(peer[1] / ours)


def of_copy(record: Record, copy_rate: float) -> float | None:
    """Our bytes per second over those of a copy."""
    ours = record["us"].get("weft")
    return None if ours is None else float(record["bytes"] / (ours * 1e-6) / copy_rate)


def geomean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else float("nan")


def table(records: Sequence[Record], copy_rate: float) -> str:
    """A line each, as Markdown. The last column, where there is one, has what was timed by the
    host's clock over many calls: JAX, and ourselves in the same way."""
    names = ["line", "weft µs", "TF/s", "of copy", "best peer", "µs", "ratio", "others"]
    rows = [_cells(record, copy_rate) for record in records]
    if any("host" in record for record in records):
        names.append("by the host's clock, µs")
        rows = [[*row, _times(r.get("host", {}))] for row, r in zip(rows, records, strict=True)]
    return "".join(f"| {' | '.join(row)} |\n" for row in [names, ["---"] * len(names), *rows])


def _cells(record: Record, copy_rate: float) -> list[str]:
    ours, peer = record["us"].get("weft"), best_peer(record)
    rate = "" if ours is None or not record["flops"] else f"{record['flops'] / ours / 1e6:.0f}"
    share = of_copy(record, copy_rate)
    others = {n: us for n, us in record["us"].items() if n != "weft" and (not peer or n != peer[0])}
    return [
        record["key"],
        record["notes"].get("weft", "") if ours is None else f"{ours:.2f}",
        rate,
        "" if share is None else f"{share:.3f}",
        peer[0] if peer else "",
        f"{peer[1]:.2f}" if peer else "",
        "" if ratio(record) is None else f"{ratio(record):.3f}",
        _times(others),
    ]


def _times(found: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {us:.2f}" for name, us in found.items())


def summary(records: Sequence[Record], copy_rate: float) -> str:
    """Per family: geomeans, the worst line, what could not run, and which peers are missing."""
    families: dict[str, list[Record]] = {}
    for record in records:
        families.setdefault(record["key"].partition("/")[0], []).append(record)
    lines = []
    for family, found in families.items():
        ratios = {r["key"]: value for r in found if (value := ratio(r)) is not None}
        capped = geomean([min(CAP, value) for value in ratios.values()])
        shares = [of_copy(r, copy_rate) for r in found if r.get("bytes", 0) >= LARGE]
        large = geomean([share for share in shares if share is not None])
        worst = min(ratios, key=ratios.__getitem__, default="")
        lines.append(
            f"{family}: {len(found)} lines, {len(ratios)} with a ratio, geomean {capped:.3f} "
            f"(capped), of copy bandwidth on large tensors {large:.3f}, "
            f"worst {worst} {ratios.get(worst, float('nan')):.3f}"
        )
        lines += [f"  {r['key']}: {r['notes']['weft']}" for r in found if "weft" in r["notes"]]
        lines += _missing_peers(found)
    return "\n".join(lines) + "\n"


def _missing_peers(records: Sequence[Record]) -> list[str]:
    """A line for every peer and reason."""
    keys: dict[tuple[str, str], list[str]] = {}
    for record in records:
        for peer, why in record["notes"].items():
            if peer != "weft":
                keys.setdefault((peer, why), []).append(record["key"])
    return [
        f"  {peer} on {found[0] if len(found) == 1 else f'{len(found)} lines'}: {why}"
        for (peer, why), found in keys.items()
    ]


def write_csv(records: Sequence[Record], path: Path) -> None:
    names = sorted({name for record in records for name in record["us"]})
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["line", "bytes", "flops", *(f"{name} us" for name in names), "notes"])
        for record in records:
            times = [f"{record['us'][n]:.3f}" if n in record["us"] else "" for n in names]
            notes = "; ".join(f"{name}: {note}" for name, note in record["notes"].items())
            rows.writerow([record["key"], record.get("bytes", ""), record["flops"], *times, notes])


def roofline(records: Sequence[Record], copy_rate: float) -> str:
    """An SVG: operations per second over operations per byte, with both limits. Lines without
    matrix products count an operation for every byte moved."""
    dots, limit = [], []
    for record in records:
        ours = record["us"].get("weft")
        if ours is not None:
            work = record["flops"] or record["bytes"]
            intensity, rate = work / record["bytes"], work / (ours * 1e-6)
            x, y = _place(intensity, rate)
            title = f"{record['key']}: {rate / 1e12:.2f} T/s"
            dots.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{title}</title></circle>')
    for step in range(200):
        intensity = 10 ** (-1 + 5 * step / 199)
        x, y = _place(intensity, min(PEAK_FLOPS, intensity * copy_rate))
        limit.append(f"{x:.1f},{y:.1f}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="13">\n<rect width="100%" height="100%" '
        f'fill="white"/>\n<polyline points="{" ".join(limit)}" fill="none" stroke="black"/>\n'
        f'<g fill="#c0392b" fill-opacity="0.6">\n{chr(10).join(dots)}\n</g>\n{_axes()}</svg>\n'
    )


def _place(intensity: float, rate: float) -> tuple[float, float]:
    """Both axes are logarithmic: 0.1 to 10⁴ per byte, 10⁹ to 10¹⁵ per second."""
    across = (math.log10(max(intensity, 0.1)) + 1) / 5
    up = (math.log10(max(rate, 1e9)) - 9) / 6
    return (
        MARGIN + across * (WIDTH - 2 * MARGIN),
        HEIGHT - MARGIN - up * (HEIGHT - 2 * MARGIN),
    )


def _axes() -> str:
    parts = []
    for power in range(-1, 5):
        x, y = _place(10.0**power, 1e9)
        parts.append(f'<text x="{x:.0f}" y="{y + 20:.0f}" text-anchor="middle">1e{power}</text>')
    for power in range(9, 16):
        x, y = _place(0.1, 10.0**power)
        parts.append(f'<text x="{x - 8:.0f}" y="{y + 4:.0f}" text-anchor="end">1e{power}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}">operations per byte</text>')
    parts.append('<text x="10" y="24">operations per second</text>')
    return "\n".join(parts) + "\n"
