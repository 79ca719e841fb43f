# SPDX-License-Identifier: Apache-2.0
"""The parts of the benchmark of first tokens that a wrong figure could come from."""

from __future__ import annotations

import itertools
import json
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from bench.compare import plots
from bench.gateway.answers import Call
from bench.readme import NotFit
from bench.report import as_json
from bench.ttft import __main__ as command
from bench.ttft import arms, document, figures, run, workload
from bench.ttft.run import SCENARIOS, Results, Slice
from xdp_router.core.config import parse_config
from xdp_router.lab.engine_answer import CHAT, wish
from xdp_router.lab.engine_behaviour import Behaviour
from xdp_router.lab.engine_load import PrefixCache, stalls_of

MS = 1_000_000
ROOT = Path(__file__).resolve().parents[2]
AT, ENGINES = ("198.18.0.1", 8100), [("198.19.1.2", 9000), ("198.19.2.2", 9000)]


def test_all_arms_have_the_same_requests() -> None:
    """Times, lengths and tokens by the seed; texts by the arm, so that no cache knows them."""
    mine, again, theirs = (workload.schedule(50, 10, 1, nonce) for nonce in ("a", "a", "b"))
    assert mine == again
    assert [(each.due_ns, each.tokens, len(each.request())) for each in mine] == [
        (each.due_ns, each.tokens, len(each.request())) for each in theirs
    ]
    assert 400 < len(mine) < 600
    assert [each.due_ns for each in mine] == sorted(each.due_ns for each in mine)
    cache = PrefixCache(1 << 16)
    for turn in mine:
        cache.take(turn.body())
    hits = sum(cache.take(turn.body())[1] for turn in theirs[:1])
    assert hits == 0
    assert workload.schedule(50, 10, 2, "a") != mine


def test_conversations_have_what_went_before() -> None:
    """And a cache that has all of them knows most of it; engines understand them."""
    turns = workload.schedule(50, 20, 1, "a")
    texts = [each.texts for each in turns]
    longer = [each for each in texts if len(each) > 2]
    assert len(longer) > len(texts) / 4
    assert all(each[:-2] in texts for each in longer)
    assert len({each[0] for each in texts}) == workload.Shape().systems
    cache = PrefixCache(1 << 16)
    found = [cache.take(each.body()) for each in turns]
    assert sum(hits for _, hits in found) > 0.6 * sum(blocks for blocks, _ in found)
    asked = wish(CHAT, turns[0].body())
    assert (asked.stream, asked.max_tokens) == (True, turns[0].tokens)
    head, _, body = turns[0].request().partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head


def test_turns_of_a_conversation_are_apart() -> None:
    """Nobody says something before having read the answer."""
    turns = workload.schedule(50, 20, 1, "a")
    at = {each.texts: each.due_ns for each in turns}
    for each in turns:
        if len(each.texts) > 2:
            assert each.due_ns - at[each.texts[:-2]] >= 1_000 * MS


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_engines_stall_by_the_round(scenario: run.Scenario) -> None:
    """The same for each arm of a round; each engine in its own way; who does not, not at all."""
    told = [[scenario.stalls(engine, seed) for engine in range(3)] for seed in (1, 2)]
    texts = [each for each in itertools.chain.from_iterable(told) if each]
    assert len(set(texts)) == len(texts) == 2 * len(scenario.stalled)
    for text in texts:
        stalls = stalls_of(text)
        lengths = []
        at = 1
        while at < 200_000:
            until_ns = stalls.until_ns(at * MS)
            if until_ns:
                lengths.append(until_ns // MS - at)
                at = until_ns // MS
            at += 1
        assert 100_000 / scenario.every_ms < len(lengths) < 400_000 / scenario.every_ms
        assert scenario.for_ms - 2 <= min(lengths) < max(lengths) <= scenario.most_ms
    Behaviour().changed(run.BEHAVIOUR)


def test_arms_are_configured(tmp_path: Path) -> None:
    """Each with all engines, ours in the mode that they are named for and nothing else changed."""
    found = {}
    for proxy in arms.proxies():
        folder = tmp_path / proxy.name
        folder.mkdir()
        started = proxy.start(folder, AT, ENGINES)
        found[proxy.name] = " ".join(started.argv) + "".join(
            each.read_text() for each in folder.iterdir()
        )
        assert all(host in found[proxy.name] for host, _ in ENGINES)
    assert tuple(found) == tuple(arms.ABOUT)
    assert "balance roundrobin" in found[arms.ROUND_ROBIN]
    assert "balance leastconn" in found[arms.LEAST]
    assert "--policy cache_aware" in found[arms.CACHE_AWARE]
    for name, text in ((n, (tmp_path / n / "gateway.toml").read_text()) for n in arms.OURS):
        (listener,) = tomllib.loads(text)["listener"]
        assert set(listener) == {"name", "type", "address", "mode", "policy", "backend"}, name
        parse_config(text, "gateway.toml")


def counted(**values: int) -> dict[str, Any]:
    """An engine's counters."""
    names = ("requests", "tokens", "prefill_bytes", "tokens_of_aborted", "prefill_of_aborted")
    more = ("aborted", "prefix_hits", "prefix_queries", "busy_ns")
    return {**dict.fromkeys((*names, *more), 0), **values}


def a_slice(arm: str, first_ms: float, *, slow_ms: float = 0, bad: int = 0, lost: int = 0) -> Slice:
    """A hundred requests, two of them slow; ``lost``: tokens of cancelled ones among 10,000."""
    times = [first_ms] * 98 + [slow_ms or first_ms] * 2
    calls = [Call(status=200, first_ns=round(each * MS), tokens=8) for each in times]
    calls += [Call(error="timeout", end_ns=30_000 * MS)] * bad
    engines = [
        counted(requests=60, tokens=5_000, prefill_bytes=20_000 - 4 * lost),
        counted(
            requests=40,
            prefill_bytes=4 * lost,
            prefill_of_aborted=4 * lost,
            aborted=10,
            prefix_queries=10,
            prefix_hits=4,
            busy_ns=6_000 * MS,
        ),
    ]
    return Slice("one", arm, calls, 1.0, engines, 50 * MS)


def test_figures_of_an_arm() -> None:
    """Waste is of prompts and answers; a failure counts as the time it was waited for."""
    found = figures.figures_of([a_slice(arms.RACE, 50, slow_ms=80, bad=1, lost=500)] * 2)
    assert (found.ms(0.5), found.failed["timeout"]) == (50, 2)
    assert found.first_ms[-1] == 30_000
    assert (found.wasted, found.wasted_answers, found.cached) == (0.05, 0, 0.4)
    assert list(found.shares) == [0.6, 0.4]
    assert found.busy == 0.5
    assert found.cancelled == 20 / 202
    assert len(found.rounds_p99) == 2


def rows(race: Slice) -> list[Any]:
    """What is said of a race beside round robin."""
    return figures.rows_of(Results([a_slice(arms.ROUND_ROBIN, 50, slow_ms=600), race]))


def test_the_race_is_judged() -> None:
    """By its p99 beside round robin's, by what it wastes, and by whether anything failed."""
    table, failed, p99, wasted = rows(a_slice(arms.RACE, 50, slow_ms=190, lost=900))
    assert (failed.ok, p99.ok, wasted.ok) == (True, True, True)
    assert table.ok is None
    assert len(table.table.lines) == 2
    _, failed, p99, wasted = rows(a_slice(arms.RACE, 50, slow_ms=210, lost=1100, bad=1))
    assert (failed.ok, p99.ok, wasted.ok) == (False, False, False)
    assert figures.rows_of(Results()) == []


def raw(quick: bool = False) -> dict[str, Any]:
    """A results file with both scenarios."""
    slices = []
    for scenario in SCENARIOS:
        for name in arms.ABOUT:
            one = a_slice(name, 50, slow_ms=120)
            slices.append(
                Slice(scenario.name, name, one.calls, one.seconds, one.engines, one.cpu_ns)
            )
    told = [as_json("ttft", each) for each in figures.rows_of(Results(slices))]
    machine = {"quick": quick, "cpu": "c", "cpus": 2, "kernel": "6.1.0"}
    return dict(json.loads(json.dumps({"conditions": machine, "rows": told, "failures": {}})))


def test_documents_have_both_scenarios(tmp_path: Path) -> None:
    """Tables, pictures and verdicts; nothing of a quick run or of one that lacks something."""
    text = document.section(raw())
    for scenario in SCENARIOS:
        assert f"![{scenario.title}](img/ttft-{scenario.name}.png)" in text
    assert text.count("| ours: race") == 2
    with pytest.raises(NotFit, match="quick"):
        document.section(raw(quick=True))
    half = raw()
    half["rows"] = [row for row in half["rows"] if "any" not in row["name"].split(":")[0]]
    assert document.measured(half) == [SCENARIOS[0]]
    with pytest.raises(NotFit, match="any"):
        document.section(half)
    marks = (ROOT / "docs" / "measurement.md").read_text(encoding="utf-8")
    assert marks.count(document.BEGIN) == marks.count(document.END) == 1
    assert set(document.STYLE.colours) == set(arms.ABOUT)
    if plots.available():
        document.draw(raw(), SCENARIOS[0], tmp_path / "one.png")
        assert (tmp_path / "one.png").stat().st_size > 5_000


def test_a_quick_run_is_not_for_the_documents(capsys: pytest.CaptureFixture[str]) -> None:
    """Refused before anything runs; a file that is not there is an error, not a traceback."""
    with pytest.raises(SystemExit) as ended:
        command.main(["--quick", "--docs"])
    assert ended.value.code == 2
    assert command.main(["--from", "none.json"]) == 1
    assert "none.json" in capsys.readouterr().err


@pytest.mark.parametrize("goals", [["bench", "ttft"], ["bench-ttft"], ["ttft"]])
def test_make_knows_it_by_each_name(goals: list[str]) -> None:
    """It runs once, and no other benchmark does."""
    done = subprocess.run(
        ["env", "-u", "MAKEFLAGS", "-u", "MAKELEVEL", "make", "-n", *goals],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert sum("-m bench.ttft" in line for line in lines) == 1
    assert not any(line.endswith("-m bench") for line in lines)
