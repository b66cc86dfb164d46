"""The plots of docs/benchmarks.md, as plain SVG.

Invariant: a plot says on itself what was measured; nothing in it needs a script, a font or another file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

from harness import Row

WIDTH, LABEL, LINE = 860, 430, 30
GOOD, BAD, NEUTRAL = "#2e7d4f", "#b3452c", "#5a6b8c"


def write(rows: Sequence[Row], folder: Path) -> None:
    """Write `ratios.svg`, rows with a peer on one logarithmic scale; better is to the right.

    Where ours is a multiple of the peer by design (16 MB against 1 MB) there is nothing to see on that scale.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ratios.svg").write_text(ratios([row for row in rows if row.ratio and row.ratio < 10]), encoding="utf-8")


def _speed(value: float, row: Row) -> float:
    """How many times as fast as the peer."""
    return value if row.unit == "calls/s" else 1 / value


def ratios(rows: Sequence[Row]) -> str:
    """Each row as a dot with its quartiles, and its target as a mark."""
    top = 56
    height = top + LINE * len(rows) + 34
    left, right = LABEL, WIDTH - 60
    low, high = math.log10(0.1), math.log10(30)

    def x(value: float) -> float:
        share = (math.log10(value) - low) / (high - low)
        return left + (right - left) * min(max(share, 0), 1)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        '<text x="12" y="22" font-size="15" fill="#1d2433">Speed as a multiple of the peer in the same run</text>',
        '<text x="12" y="40" fill="#5a6478">dot: median, bar: middle half of the rounds, tick: target; '
        "right of 1 is faster than the peer</text>",
    ]
    for value in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20):
        at, colour = x(value), "#9aa3b5" if value == 1 else "#e3e6ee"
        out.append(f'<line x1="{at:.1f}" y1="{top}" x2="{at:.1f}" y2="{height - 26}" stroke="{colour}"/>')
        out.append(f'<text x="{at:.1f}" y="{height - 10}" text-anchor="middle" fill="#5a6478">{value:g}&#215;</text>')
    for number, row in enumerate(rows):
        assert row.ratio is not None
        y = top + LINE * number + LINE / 2
        colour = NEUTRAL if row.met is None else GOOD if row.met else BAD
        first, second = sorted(x(_speed(value, row)) for value in row.spread["ratio"])
        name, _, peer = row.name.partition(" (peer: ")
        out += [
            f'<text x="12" y="{y - 1:.1f}" fill="#1d2433">{escape(name)}</text>',
            f'<text x="12" y="{y + 11:.1f}" font-size="9.5" fill="#7a8398">against {escape(peer.rstrip(")"))}</text>',
            f'<rect x="{first:.1f}" y="{y - 4:.1f}" width="{max(second - first, 1):.1f}" height="8" fill="{colour}" '
            'opacity="0.3"/>',
            f'<circle cx="{x(_speed(row.ratio, row)):.1f}" cy="{y:.1f}" r="4.5" fill="{colour}"/>',
            f'<text x="{WIDTH - 8}" y="{y + 4:.1f}" text-anchor="end" fill="{colour}">'
            f"{_speed(row.ratio, row):.2f}&#215;</text>",
        ]
        if row.target is not None:
            at = x(_speed(float(row.target.split()[1]), row))
            line = f'<line x1="{at:.1f}" y1="{y - 9:.1f}" x2="{at:.1f}" y2="{y + 9:.1f}"'
            out.append(f'{line} stroke="#1d2433" stroke-width="2"/>')
    out.append("</svg>")
    return "\n".join(out) + "\n"
