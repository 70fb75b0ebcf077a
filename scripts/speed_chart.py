"""Draw the chart of the site's home page from the figures of the page about performance.

    python scripts/speed_chart.py

Writes docs/speed.svg. The figures are those of docs/guides/performance.md, whose tables `make
bench` has printed: a bar for each codec, as long as the sink or the source is faster than Spark's.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "guides" / "performance.md"
CHART = ROOT / "docs" / "speed.svg"

# Narrow, so that its text can be read on a phone.
_WIDTH, _LEFT, _ROW, _BAR = 400, 122, 26, 16
_FILL = {"writing": 'rx="2" fill="#4051b5"', "reading": 'rx="2" fill="#00897b"'}
_STYLE = 'font-family="sans-serif" font-size="13" role="img"'
_DASHED = 'stroke="#888" stroke-dasharray="3 3"'


def figures(page: str) -> list[tuple[str, str, float]]:
    """Return the bars: writing or reading, the codec, how many times as fast."""
    writing, reading = page.split("## Reading", 1)
    written = re.findall(r"^\| (none|lz4|zstd) \| ([\d.]+)x \|", writing, re.MULTILINE)
    read = re.findall(r"^\| (none|lz4|zstd) \| all \| ([\d.]+)x \|", reading, re.MULTILINE)
    return [
        (what, codec, float(ratio))
        for what, rows in (("writing", written), ("reading", read))
        for codec, ratio in rows
    ]


def chart(bars: list[tuple[str, str, float]]) -> str:
    """Return the chart as SVG; a line marks Spark's own connector, at 1."""
    unit = (_WIDTH - _LEFT - 44) / max(ratio for _, _, ratio in bars)
    height = _ROW * len(bars) + 34
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" {_STYLE}>',
        "<title>Times as fast as Spark's own Kafka connector</title>",
        # Readable on the light and on the dark background of the site.
        "<style>text{fill:#7a7a7a}</style>",
    ]
    for index, (what, codec, ratio) in enumerate(bars):
        y = index * _ROW + 6
        label = f"{what}, {'no codec' if codec == 'none' else codec}"
        lines += [
            f'<text x="{_LEFT - 10}" y="{y + 13}" text-anchor="end">{label}</text>',
            f'<rect x="{_LEFT}" y="{y}" width="{ratio * unit:.0f}" height="{_BAR}" {_FILL[what]}/>',
            f'<text x="{_LEFT + ratio * unit + 6:.0f}" y="{y + 13}">{ratio:g}x</text>',
        ]
    x, bottom = _LEFT + unit, height - 22
    lines += [
        f'<line x1="{x:.0f}" y1="0" x2="{x:.0f}" y2="{bottom}" {_DASHED}/>',
        f'<text x="{x:.0f}" y="{bottom + 15}" text-anchor="middle">Spark\'s own: 1x</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    CHART.write_text(chart(figures(PAGE.read_text())))
