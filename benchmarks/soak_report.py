"""The table and the plot of a soak: memory by part, ten minutes after the last start of the engine and at the end."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

__all__ = ["PARTS", "plot", "print_report", "read_samples"]

Sample: TypeAlias = dict[str, Any]

PARTS = {
    "node": "node",
    "driver": "engine",
    "java_heap": "Java heap",
    "java_classes": "Java classes",
    "java_native": "Java, other",
    "state_store": "state stores",
    "python_workers": "Python workers",
}
_COLORS = ("#4c78a8", "#72b7b2", "#e45756", "#f58518", "#b279a2", "#54a24b", "#eeca3b")
_WINDOW = 300.0  # seconds of which a figure is the median: Java collects its heap every two minutes
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM, _LEGEND = 860, 360, 62, 16, 34, 150


def read_samples(path: Path) -> tuple[Sample, list[Sample]]:
    """Returns the description of a run, and its samples; the last line of an interrupted run may be torn."""
    lines = path.read_text().splitlines()
    found = []
    for line in lines[1:]:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return json.loads(lines[0]), found


def memory(sample: Sample, part: str) -> float:
    """Returns the megabytes of one part; 0 while the engine is down."""
    value = sample["node"] if part == "node" else (sample["engine"] or {}).get(part, 0)
    return float(value) / 1e6


def total(sample: Sample) -> float:
    """Returns the megabytes of all parts."""
    return sum(memory(sample, part) for part in PARTS)


def around(samples: Sequence[Sample], seconds: float, of: Callable[[Sample], float]) -> float:
    """Returns the median over the five minutes before a moment, of samples with a running engine."""
    values = [of(one) for one in samples if seconds - _WINDOW < one["seconds"] <= seconds and one["engine"]]
    return statistics.median(values) if values else float("nan")


def print_report(about: Sample, samples: Sequence[Sample], audit: Path, minute: float | None = None) -> None:
    """Print memory by part as a Markdown table, the achieved rate, and the result of the audit.

    Args:
        about: The description of the run.
        samples: Its samples.
        audit: The file of the audit.
        minute: The minute to compare the end with; ten minutes after the last start of the engine, if omitted.
    """
    end = samples[-1]["seconds"]
    started = max((one["seconds"] for one, after in pairwise(samples) if after["kills"] > one["kills"]), default=0.0)
    early = min(started + 600.0, end) if minute is None else minute * 60
    print(f"The engine runs from minute {started / 60:.0f} on; figures are medians of five minutes.\n")
    print(f"| part | after {early / 60:.0f} min | after {end / 60:.0f} min | ratio | most |\n|---|---|---|---|---|")
    figures = [(name, lambda one, part=part: memory(one, part)) for part, name in PARTS.items()]
    for name, of in [*figures, ("all", total)]:
        first, last = (around(samples, moment, of) for moment in (early, end))
        most = max(of(one) for one in samples)
        print(f"| {name} | {first:,.0f} MB | {last:,.0f} MB | {last / first if first else 0:.2f} | {most:,.0f} MB |")
    events, kills = samples[-1]["events"], samples[-1]["kills"]
    print(
        f"\n{events:,} events in {end / 60:.0f} minutes: {events / end:,.0f} of {about['rate']:,.0f} events/s; ", end=""
    )
    print(f"the engine was killed {kills} times.\n{about['machine']}")
    if not audit.exists():
        print("The run has not finished; there is no audit.")
        return
    found = json.loads(audit.read_text())
    for one in found["pipelines"]:
        print(f"{one['name']}: {one['counts']}, {one['rows']} rows, {one['wrong']} differ from a batch query")
    print("\n".join(found["faults"]) or "Every event is accounted for: none lost, none repeated, no row differs.")


def plot(samples: Sequence[Sample]) -> str:
    """Returns a stacked area chart of all parts over time as SVG."""
    end = samples[-1]["seconds"] or 1.0
    top = max(map(total, samples)) * 1.08
    inner_width, inner_height = _WIDTH - _LEFT - _LEGEND, _HEIGHT - _TOP - _BOTTOM

    def at(sample: Sample, megabytes: float) -> str:
        x = _LEFT + sample["seconds"] / end * inner_width
        return f"{x:.1f},{_TOP + inner_height * (1 - megabytes / top):.1f}"

    shapes, below = [], [0.0] * len(samples)
    for number, (part, name) in enumerate(PARTS.items()):
        above = [low + memory(one, part) for low, one in zip(below, samples, strict=True)]
        edge = [at(one, high) for one, high in zip(samples, above, strict=True)]
        edge += reversed([at(one, low) for one, low in zip(samples, below, strict=True)])
        shapes.append(f'<polygon fill="{_COLORS[number]}" points="{" ".join(edge)}"/>')
        y = _HEIGHT - _BOTTOM - 12 - 22 * number
        x = _WIDTH - _LEGEND + 14
        shapes.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{_COLORS[number]}"/>')
        shapes.append(f'<text x="{x + 18}" y="{y}">{name}</text>')
        below = above
    shapes += _axes(end, top, inner_width, inner_height)
    body = "\n".join(shapes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        f'font-size="12" role="img" aria-label="Memory by part over time">\n'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>\n{body}\n</svg>\n'
    )


def _axes(end: float, top: float, width: int, height: int) -> list[str]:
    """Returns labels and grid lines: about ten of time in minutes, one per 250 or 500 MB."""
    shapes, step = [], 250 if top < 1500 else 500
    for megabytes in range(0, int(top) + 1, step):
        y = _TOP + height * (1 - megabytes / top)
        shapes.append(f'<line x1="{_LEFT}" x2="{_LEFT + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#0002"/>')
        shapes.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{megabytes:,} MB</text>')
    minutes = max(1, round(end / 600))
    for minute in range(0, int(end / 60) + 1, minutes):
        x = _LEFT + minute * 60 / end * width
        shapes.append(f'<text x="{x:.1f}" y="{_HEIGHT - 12}" text-anchor="middle">{minute}</text>')
    shapes.append(f'<text x="{_LEFT + width}" y="{_HEIGHT - 12}" dx="18">minutes</text>')
    return shapes
