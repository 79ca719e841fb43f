# SPDX-License-Identifier: Apache-2.0
"""The figures and pictures in ``docs/measurement.md``, from a results file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.compare import plots
from bench.compare.document import DOCUMENT, IMAGES, left
from bench.readme import NotFit, replaced
from bench.report import table_lines, verdict
from bench.rows import Table

from . import arms as of
from .run import SCENARIOS, Scenario

BEGIN = "<!-- first tokens: python -m bench.ttft --from bench-results/FILE.json --docs -->"
END = "<!-- end of first tokens -->"
_COLOURS = {
    of.ROUND_ROBIN: "#ff7f0e",
    of.LEAST: "#d62728",
    of.CACHE_AWARE: "#9467bd",
    of.INLINE: "#17becf",
    of.SNAPSHOT: "#2ca02c",
    of.HCL: "#8c564b",
    of.RACE: "#1f77b4",
}
STYLE = plots.Style(_COLOURS, of.OURS, what="requests", until="first token")


def image_name(scenario: Scenario) -> str:
    """File name of a scenario's picture in docs/img."""
    return f"ttft-{scenario.name}.png"


def table_of(raw: Mapping[str, Any], scenario: Scenario) -> Mapping[str, Any]:
    """A scenario's row with the table. Raises NotFit if it is not there."""
    for row in raw["rows"]:
        if row["name"].startswith(f"ttft, {scenario.name}: {scenario.title}"):
            return dict(row)
    raise NotFit(f"nothing was measured of {scenario.name}")


def measured(raw: Mapping[str, Any]) -> list[Scenario]:
    """The scenarios that a file has."""
    names = [row["name"] for row in raw["rows"]]
    return [
        each
        for each in SCENARIOS
        if any(name.startswith(f"ttft, {each.name}: {each.title}") for name in names)
    ]


def draw(raw: Mapping[str, Any], scenario: Scenario, path: Path) -> None:
    """A scenario's picture. Raises ImportError without matplotlib."""
    arms = table_of(raw, scenario)["values"]["arms"]
    first_ms = {name: [each / 1e3 for each in arm["ttft_us"]] for name, arm in arms.items()}
    plots.draw(path, scenario.title, first_ms, STYLE)


def section(raw: Mapping[str, Any]) -> str:
    """The lines between the marks. Raises NotFit for a quick run or one that lacks something."""
    if raw["conditions"]["quick"]:
        raise NotFit("a quick run only shows that all works: run it without --quick")
    machine = raw["conditions"]
    kernel = ".".join(machine["kernel"].split(".")[:2])
    lines = [f"One run on {machine['cpu']}, {machine['cpus']} CPUs, Linux {kernel}:", ""]
    for scenario in SCENARIOS:
        row = table_of(raw, scenario)
        for name, why in row["values"]["missing"].items():
            raise NotFit(f"no {name}: {why}")
        cells: Sequence[Mapping[str, str]] = row["table"]
        table = Table(tuple(cells[0]), tuple(tuple(line.values()) for line in cells))
        lines += [f"**{scenario.title[0].upper()}{scenario.title[1:]}**", "", *table_lines(table)]
        lines += ["", f"![{scenario.title}](img/{image_name(scenario)})", ""]
    judged = [
        (row["name"], row["goal"], row["measured"], verdict(row["ok"]))
        for row in raw["rows"]
        if row["ok"] is not None
    ]
    table = Table(("what", "goal", "measured", "verdict"), tuple(judged))
    return "\n".join([*lines, *left(table)])


def write(raw: Mapping[str, Any], document: Path = DOCUMENT, images: Path = IMAGES) -> None:
    """Pictures and figures. Raises NotFit, and writes nothing then."""
    new = replaced(document.read_text(encoding="utf-8"), section(raw), BEGIN, END)
    for scenario in SCENARIOS:
        draw(raw, scenario, images / image_name(scenario))
    document.write_text(new, encoding="utf-8")
