# SPDX-License-Identifier: Apache-2.0
"""Pictures: which part of the connections had its first byte by when, and the tail of it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import arms as of

MISSING = "matplotlib was not found, so there are no pictures; get it by: sudo make bench-deps"
POINTS = 400
"""A line has no more: what two more would show is narrower than the line."""
_COLOURS = {
    of.DIRECT: "#7f7f7f",
    of.NFTABLES: "#9467bd",
    of.HASH: "#8c564b",
    of.ROUNDROBIN: "#ff7f0e",
    of.LEASTCONN: "#d62728",
    of.RACE: "#1f77b4",
    of.SNAPSHOT: "#2ca02c",
    of.INLINE: "#17becf",
}
_INCHES = (11.0, 4.2)
_DPI = 100


@dataclass(frozen=True, slots=True)
class Curve:
    """``parts[i]`` of the connections took at most ``times_ms[i]``."""

    times_ms: tuple[float, ...]
    parts: tuple[float, ...]

    def tail(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Times, and which part took longer; without the last, of which nothing is longer."""
        return self.times_ms[:-1], tuple(1 - part for part in self.parts[:-1])


def curve(values_ms: Sequence[float], points: int = POINTS) -> Curve:
    """The distribution. All of the slowest hundredth is kept: the tail is what is looked at."""
    ordered = sorted(values_ms)
    number = len(ordered)
    body = number - max(1, number // 100)
    step = max(1, -(-body // points))
    kept = [*range(0, body, step), *range(body, number)] if number else []
    return Curve(tuple(ordered[at] for at in kept), tuple((at + 1) / number for at in kept))


def available() -> bool:
    """Whether pictures can be drawn."""
    return importlib.util.find_spec("matplotlib") is not None


@dataclass(frozen=True, slots=True)
class Style:
    """How arms look and what the axes say. ``colours`` by arm; ``ours`` have the thicker lines."""

    colours: Mapping[str, str]
    ours: Sequence[str]
    what: str = "connections"
    until: str = "first byte"


CONNECTIONS = Style(_COLOURS, of.OURS)


def draw(
    path: Path, title: str, arms_ms: Mapping[str, Sequence[float]], how: Style = CONNECTIONS
) -> None:
    """Write one scenario's picture, a PNG. Raises ImportError without matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=_INCHES, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    body, tail = figure.subplots(1, 2)
    for name, values in arms_ms.items():
        line = curve(values)
        own = name in how.ours
        style = {
            "label": name,
            "color": how.colours[name],
            "linewidth": 2.0 if own else 1.2,
            "linestyle": "-" if own else "--",
            "drawstyle": "steps-post",
        }
        body.plot(line.times_ms, [100 * part for part in line.parts], **style)
        times, parts = line.tail()
        tail.plot(times, [100 * part for part in parts], **style)
    for axes in (body, tail):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel(f"{how.until} after ms")
        axes.grid(visible=True, which="major", alpha=0.3)
    body.set_ylabel(f"% of {how.what}")
    body.set_ylim(0, 100)
    tail.set_yscale("log")
    tail.yaxis.set_major_formatter("{x:g}")
    tail.set_ylabel(f"% of {how.what} that take longer")
    tail.set_ylim(0.03, 100)
    figure.legend(*body.get_legend_handles_labels(), fontsize="small", loc="outside right center")
    figure.suptitle(title, fontsize="medium")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
