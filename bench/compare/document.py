# SPDX-License-Identifier: Apache-2.0
"""A comparison's figures and pictures in ``docs/measurement.md``, from its results file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.readme import NotFit, replaced
from bench.report import table_lines, verdict
from bench.rows import Table

from . import plots
from .scenarios import SCENARIOS, Scenario

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "measurement.md"
IMAGES = ROOT / "docs" / "img"
BEGIN = "<!-- comparison: python -m bench.compare --from bench-results/FILE.json --docs -->"
END = "<!-- end of comparison -->"


def image_name(scenario: Scenario) -> str:
    """File name of a scenario's picture in docs/img."""
    return f"compare-{scenario.name}.png"


def table_of(raw: Mapping[str, Any], scenario: Scenario) -> Mapping[str, Any]:
    """A scenario's row with the table. Raises NotFit if it is not there."""
    for row in raw["rows"]:
        if row["name"].startswith(f"connections, {scenario.name}:"):
            return dict(row)
    raise NotFit(f"nothing was measured of {scenario.name}")


def check(raw: Mapping[str, Any]) -> None:
    """Raises NotFit for a quick run, and for one that lacks an arm or a scenario."""
    if raw["conditions"]["quick"]:
        raise NotFit("a quick run only shows that all works: run it without --quick")
    for scenario in SCENARIOS:
        for name, why in table_of(raw, scenario)["values"]["missing"].items():
            raise NotFit(f"no {name}: {why}")


def draw(raw: Mapping[str, Any], scenario: Scenario, path: Path) -> None:
    """A scenario's picture. Raises ImportError without matplotlib."""
    arms = table_of(raw, scenario)["values"]["arms"]
    first_ms = {n: [each / 1e3 for each in arm["first_byte_us"]] for n, arm in arms.items()}
    plots.draw(path, scenario.title, first_ms)


def section(raw: Mapping[str, Any]) -> str:
    """The lines between the marks. Raises NotFit."""
    check(raw)
    machine = raw["conditions"]
    kernel = ".".join(machine["kernel"].split(".")[:2])
    number = min(
        arm["connections"]
        for scenario in SCENARIOS
        for arm in table_of(raw, scenario)["values"]["arms"].values()
    )
    lines = [
        f"One run on {machine['cpu']}, {machine['cpus']} CPUs, Linux {kernel}; {number:,} "
        "connections of each arm in each scenario:",
        "",
    ]
    for scenario in SCENARIOS:
        row = table_of(raw, scenario)
        cells: Sequence[Mapping[str, str]] = row["table"]
        table = Table(tuple(cells[0]), tuple(tuple(line.values()) for line in cells))
        lines += [f"**{scenario.title[0].upper()}{scenario.title[1:]}**", "", *table_lines(table)]
        lines += ["", f"![{scenario.title}](img/{image_name(scenario)})", ""]
    judged = [
        (row["name"], row["goal"], row["measured"], verdict(row["ok"]))
        for row in raw["rows"]
        if row["goal"] != "reported"
    ]
    table = Table(("what", "goal", "measured", "verdict"), tuple(judged))
    return "\n".join([*lines, *left(table)])


def left(table: Table) -> list[str]:
    """A table as lines of Markdown, each column to the left."""
    lines = [f"| {' | '.join(line)} |" for line in (table.head, *table.lines)]
    return [lines[0], "|" + "---|" * len(table.head), *lines[1:]]


def write(raw: Mapping[str, Any], document: Path = DOCUMENT, images: Path = IMAGES) -> None:
    """Pictures and figures. Raises NotFit, and writes nothing then."""
    new = replaced(document.read_text(encoding="utf-8"), section(raw), BEGIN, END)
    for scenario in SCENARIOS:
        draw(raw, scenario, images / image_name(scenario))
    document.write_text(new, encoding="utf-8")
