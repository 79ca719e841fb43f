# SPDX-License-Identifier: Apache-2.0
"""The comparison's own parts that a wrong figure, or a wrong verdict, could come from."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import haproxy, report
from bench.compare import __main__ as command
from bench.compare import arms as of
from bench.compare import client, document, figures, plots
from bench.compare.client import Connection
from bench.compare.run import Results, Slice, cpu_ticks
from bench.compare.scenarios import (
    FARTHER,
    FLAT,
    RATE,
    SCENARIOS,
    SLICE_NS,
    STALLS,
    Scenario,
    alone,
    arrivals,
    turns,
)
from bench.forwarding import round_robin_rules
from bench.readme import NotFit
from bench.rows import Row
from xdp_router.core import abi
from xdp_router.core.config import Settings, parse_config
from xdp_router.core.model import NO_BACKEND, Mode

ROOT = Path(__file__).parents[2]
BACKENDS = [("198.19.1.2", 8080), ("198.19.2.2", 8080), ("198.19.3.2", 8080)]
CLIENTS = [f"198.18.0.{number}" for number in range(2, 2 + len(of.ARMS))]
MS = 1_000_000


def test_arms_of_a_round_meet_the_same() -> None:
    """A seed gives one schedule; all seeds have the same number of connections."""
    assert arrivals(3) == arrivals(3) == sorted(arrivals(3))
    assert arrivals(3) != arrivals(4)
    for seed in range(20):
        starts = arrivals(seed)
        assert len(starts) == RATE * SLICE_NS // 1_000_000_000
        assert 0 <= starts[0] <= starts[-1] < SLICE_NS


def test_turns_have_each_arm_once_and_begin_with_another_one() -> None:
    """No arm is always the first after a pause, or behind the same neighbour at the begin."""
    rounds = [turns(of.ARMS, number) for number in range(len(of.ARMS))]
    assert all(sorted(each) == sorted(of.ARMS) for each in rounds)
    assert {each[0] for each in rounds} == set(of.ARMS)


def test_a_connection_is_alone_after_a_gap() -> None:
    """Only the time since the one before counts; the first is alone."""
    assert alone([0, 1 * MS, 6 * MS, 8 * MS, 13 * MS]) == [True, False, True, False, True]
    assert alone([]) == []


def test_scenarios_stall_one_backend_and_delay_one() -> None:
    """Wires are the kernel's own unless something is to be delayed there."""
    assert [FLAT.delayed(number) for number in range(3)] == [False] * 3
    assert [FARTHER.delayed(number) for number in range(3)] == [False, True, False]
    assert FLAT.stall(0, 1) is None
    shared = [STALLS.stall(number, 7) for number in range(3)]
    assert [(each.seed, each.one_of, each.number) for each in shared if each] == [
        (7, 3, number) for number in range(3)
    ]
    assert {(e.extra_ns, e.window_ns, e.period_ns) for e in shared if e} == {
        (50 * MS, 200 * MS, 500 * MS)
    }
    assert SLICE_NS % (500 * MS) == 0, "all slices have whole periods"


def test_arms_have_clients_of_their_own() -> None:
    """Else two arms' connections would have one tuple at a server. Direct has all servers."""
    arms = of.arms_of(CLIENTS, BACKENDS)
    assert [arm.name for arm in arms] == list(of.ARMS)
    assert len({arm.source for arm in arms}) == len(arms)
    targets = {arm.name: arm.targets for arm in arms}
    assert targets.pop(of.DIRECT) == tuple(BACKENDS)
    assert len(set(targets.values())) == len(targets)


def test_arms_that_are_missing_change_no_others() -> None:
    """The others keep their addresses."""
    every = of.arms_of(CLIENTS, BACKENDS)
    some = of.arms_of(CLIENTS, BACKENDS, tuple(of.BY_HAPROXY))
    assert [arm for arm in every if arm.name not in of.BY_HAPROXY] == list(some)


def test_the_router_is_configured_as_by_who_says_nothing() -> None:
    """Four services of the same servers; settings are all the default ones."""
    config = parse_config(of.router_config(BACKENDS), "router.toml")
    modes = {service.name: service.mode for service in config.services}
    assert modes == {
        "race": Mode.RACE,
        "snapshot": Mode.SNAPSHOT,
        "inline": Mode.INLINE,
        "hash": Mode.RACE,
    }
    assert config.settings == Settings()
    assert {service.fallback for service in config.services} == {NO_BACKEND}
    assert [b.name for b in config.services[0].backends] == ["race-b1", "race-b2", "race-b3"]


def test_haproxy_is_configured_as_the_issue_says() -> None:
    """TCP, a check each 2 s, a listener for each way to balance."""
    text = haproxy.config_text(of.HAPROXY_ADDRESSES, BACKENDS)
    assert text.count("  server b") == 6
    assert text.count("check inter 2s") == 6
    assert "mode tcp" in text
    for balance, (host, port) in of.HAPROXY_ADDRESSES.items():
        assert f"bind {host}:{port}\n  balance {balance}\n" in text


def test_nftables_go_round() -> None:
    """A counter, and a map of all backends."""
    rules = round_robin_rules(of.NFTABLES_ADDRESS, BACKENDS)
    assert "numgen inc mod 3 map { 0 : 198.19.1.2 . 8080, 1 : 198.19.2.2 . 8080, 2 :" in rules
    assert "ip daddr 198.18.100.2 tcp dport 80 dnat" in rules


def test_the_client_is_read() -> None:
    """A connection that failed counts as the longest that is waited, in what it did not reach."""
    good, refused, late = client.parsed(
        "ok b2 40001 1000 250000 500000\nrefused - 40002 0 -1 -1\ntimeout - 40003 5 300000 -1\n"
    )
    assert (good.failed, good.answer, good.connect_ms, good.first_ms) == (False, "b2", 0.25, 0.5)
    assert (refused.failed, refused.connect_ms, refused.first_ms) == (True, 5_000, 5_000)
    assert (late.failed, late.connect_ms, late.first_ms) == (True, 0.3, 5_000)
    with pytest.raises(ValueError, match="not enough values"):
        client.parsed("ok b2 40001\n")


def test_the_client_gets_its_arm() -> None:
    """Source, start, patience, and all targets."""
    arm = of.arms_of(CLIENTS, BACKENDS)[0]
    called = client.command(arm, 77, Path("/first_byte"))
    assert called[:4] == ["/first_byte", "198.18.0.2", "77", "5000"]
    assert called[4:] == ["198.19.1.2:8080", "198.19.2.2:8080", "198.19.3.2:8080"]


def test_cpu_time_without_idling() -> None:
    """Guests are in user time already, and are not counted twice."""
    assert cpu_ticks("cpu  1 2 3 100 10 4 5 6 7 8\ncpu0 1\n") == (21, 131)


STARTS = [number * 10 * MS for number in range(100)]


def sliced(
    scenario: Scenario,
    arm: str,
    first_us: Sequence[float],
    connect_us: float = 100,
    failed: int = 0,
) -> Slice:
    """A turn with these times; the last ``failed`` ones are refused."""
    made = [
        Connection("ok", f"b{n % 3 + 1}", 40_000 + n, 5_000, 100_000, round(us * 1e3))
        for n, us in enumerate(first_us)
    ]
    for at in range(len(made) - failed, len(made)):
        made[at] = replace(made[at], result="refused", connect_ns=-1, first_ns=-1)
    return Slice(scenario.name, arm, STARTS[: len(made)], made, 0.25, [15.0])


def every_arm(scenario: Scenario, **first_us: Sequence[float]) -> list[Slice]:
    """A turn of each arm: those not named take 400 µs."""
    return [
        sliced(scenario, name, first_us.get(name.replace(" ", "_"), [400.0] * 100))
        for name in of.ARMS
    ]


def rows(slices: Sequence[Slice], **results: Any) -> dict[str, Row]:
    """Rows by name."""
    return {row.name: row for row in figures.rows_of(Results(list(slices), **results))}


BEYOND = "flat: first byte of race, p50, beyond direct and one round trip"
LOWER = "stalls: first byte of race, p99"
SLOW = "stalls: connections of snapshot slower than 10 ms"


@pytest.mark.parametrize(("race_us", "ok"), [(640.0, True), (660.0, False)])
def test_race_may_take_a_round_trip_and_a_bit(race_us: float, ok: bool) -> None:
    """400 µs of direct, 100 of its connect, and 150."""
    row = rows(every_arm(FLAT, race=[race_us] * 100))[BEYOND]
    assert row.ok is ok
    assert row.measured == f"{race_us - 500:+.0f} us"


def test_shared_races_do_not_make_race_look_better() -> None:
    """Who begins right after another one is not asked, in neither arm."""
    crowd = [0, 10 * MS, 11 * MS, 12 * MS, 13 * MS, 14 * MS]
    slices = every_arm(FLAT, race=[600.0, 600.0, 450.0, 450.0, 450.0, 450.0])
    slices = [
        replace(each, starts_ns=crowd, connections=each.connections[: len(crowd)])
        for each in slices
    ]
    assert rows(slices)[BEYOND].values["beyond_direct_us"] == [pytest.approx(200)]


@pytest.mark.parametrize(("mode_us", "ok"), [(380.0, True), (429.0, True), (432.0, False)])
def test_modes_that_decide_at_once_may_cost_next_to_nothing(mode_us: float, ok: bool) -> None:
    """Within 30 µs of direct; being faster is fine."""
    judged = rows(every_arm(FLAT, snapshot=[mode_us] * 100, inline=[mode_us] * 100))
    for mode in (of.SNAPSHOT, of.INLINE):
        assert judged[f"flat: first byte of {mode}, p50, beyond direct"].ok is ok


def test_rounds_are_compared_each_by_itself() -> None:
    """One slow round of all arms is not a difference between them."""
    calm, slow = (every_arm(FLAT), [replace(each) for each in every_arm(FLAT)])
    slow = [sliced(FLAT, each.arm, [4_000.0] * 100) for each in slow]
    assert rows([*calm, *slow, *calm])["flat: first byte of snapshot, p50, beyond direct"].ok


@pytest.mark.parametrize(
    ("leastconn_ms", "ok", "told"), [(100, True, "25 x lower"), (79, False, "20 x lower")]
)
def test_the_worst_ratio_judges_race(leastconn_ms: int, ok: bool, told: str) -> None:
    """20 times lower than both."""
    tail = [400.0] * 90
    slices = every_arm(
        STALLS,
        race=[*tail, *[4_000.0] * 10],
        nftables_round_robin=[*tail, *[200_000.0] * 10],
        HAProxy_leastconn=[*tail, *[leastconn_ms * 1e3] * 10],
    )
    row = rows(slices)[LOWER]
    assert row.ok is ok
    assert "50 x lower than nftables round robin" in row.measured
    assert f"{told} than HAProxy leastconn" in row.measured


def test_without_haproxy_nobody_says_that_race_is_good_enough() -> None:
    """The arm is in the table, without figures, and the verdict says what is missing."""
    slices = [each for each in every_arm(STALLS) if each.arm not in of.BY_HAPROXY]
    judged = rows(slices, missing=dict.fromkeys(of.BY_HAPROXY, haproxy.MISSING))
    assert judged[LOWER].ok is None
    assert "HAProxy leastconn is missing" in judged[LOWER].measured
    table = judged[f"connections, stalls: {STALLS.title}"]
    assert "no HAProxy leastconn: haproxy was not found; get it by" in table.how
    assert table.table is not None
    assert ("HAProxy leastconn", *["-"] * 7) in table.table.lines


@pytest.mark.parametrize(("slow", "ok"), [(1, True), (2, False)])
def test_snapshot_may_have_one_slow_in_a_hundred(slow: int, ok: bool) -> None:
    """10 ms exactly is not slower than 10 ms."""
    first_us = [10_000.0] * (100 - slow) + [10_001.0] * slow
    assert rows(every_arm(STALLS, snapshot=first_us))[SLOW].ok is ok


def test_failures_are_slow_and_are_told() -> None:
    """They count as 5 s, in the share of slow ones too, and none of ours may fail."""
    slices = [each for each in every_arm(STALLS) if each.arm != of.SNAPSHOT]
    slices.append(sliced(STALLS, of.SNAPSHOT, [400.0] * 100, failed=3))
    judged = rows(slices)
    assert judged[SLOW].measured == "3.00 %"
    failures = judged["stalls: failed connections of the three modes"]
    assert (failures.ok, failures.measured) == (False, "race 0, snapshot 3, inline 0")
    told = judged[f"connections, stalls: {STALLS.title}"].values["arms"][of.SNAPSHOT]
    assert told["failed"] == {"refused": 3}
    assert told["first_byte_ms"] == {"p50": 0.4, "p99": 5_000}
    assert sum(told["backends"].values()) == 97


@pytest.mark.parametrize(("races", "ok"), [(100, True), (99, False)])
def test_what_was_decided_otherwise_is_told(races: int, ok: bool) -> None:
    """A race that came too late is none; and the hash's service must have had no events."""
    counts = {**dict.fromkeys(figures.COUNTED_AS.values(), 100), "engine decided_race": races}
    judged = rows(every_arm(FLAT), router={"flat": counts})
    row = judged["flat: connections decided by what the arm is named for"]
    assert row.ok is ok
    assert f"race {races} of 100" in row.measured


def test_what_the_router_counts_is_there() -> None:
    """A counter that was renamed would be taken for none."""
    xdp = {name.removeprefix("XDP ") for name in figures.COUNTED_AS.values() if "XDP" in name}
    assert xdp <= set(abi.Counter.__members__)


@given(st.lists(st.floats(0.01, 5_000), min_size=1, max_size=3_000))
def test_a_curve_keeps_the_tail(values: list[float]) -> None:
    """It rises to all, has no more points than asked, and each of the slowest hundredth."""
    line = plots.curve(values, points=50)
    assert list(line.times_ms) == sorted(line.times_ms)
    assert list(line.parts) == sorted(set(line.parts))
    assert line.parts[-1] == 1
    assert line.times_ms[-1] == max(values)
    slowest = sorted(values)[-max(1, len(values) // 100) :]
    assert list(line.times_ms[-len(slowest) :]) == slowest
    assert len(line.times_ms) <= 50 + len(slowest)
    times, parts = line.tail()
    assert len(times) == len(parts)
    assert all(part > 0 for part in parts)


def test_nothing_is_no_curve() -> None:
    """An arm without connections draws nothing."""
    assert plots.curve([]) == plots.Curve((), ())


def results(*, quick: bool = False, missing: dict[str, str] | None = None) -> dict[str, Any]:
    """What a run writes."""
    slices = [each for scenario in SCENARIOS for each in every_arm(scenario)]
    found = figures.rows_of(Results(slices, missing or {}))
    machine = {"cpu": "A CPU", "cpus": 2, "kernel": "6.18.4-local", "quick": quick}
    made = {"conditions": machine, "rows": [report.as_json("compare", row) for row in found]}
    return dict(json.loads(json.dumps(made)))


def test_the_document_gets_tables_pictures_and_verdicts() -> None:
    """One table and one picture of each scenario, and what was expected of it."""
    text = document.section(results())
    assert "One run on A CPU, 2 CPUs, Linux 6.18; 100 connections of each arm" in text
    for scenario in SCENARIOS:
        assert f"![{scenario.title}](img/compare-{scenario.name}.png)" in text
    assert text.count("| nftables round robin |") == 3
    assert (
        f"| {LOWER} | >= 20 x lower than round robin and HAProxy leastconn | 0.40 ms, 1 x" in text
    )
    assert "| SHORT |" in text
    assert "| pass |" in text


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (results(quick=True), "without --quick"),
        (results(missing={of.LEASTCONN: "it was not found"}), "no HAProxy leastconn: it was not"),
        ({**results(), "rows": []}, "nothing was measured of flat"),
    ],
)
def test_a_run_that_is_not_fit_changes_no_document(
    raw: dict[str, Any], why: str, tmp_path: Path
) -> None:
    """And it says why."""
    page = tmp_path / "page.md"
    page.write_text(f"{document.BEGIN}\n{document.END}\n", encoding="utf-8")
    with pytest.raises(NotFit, match=why):
        document.write(raw, page, tmp_path)
    assert page.read_text(encoding="utf-8") == f"{document.BEGIN}\n{document.END}\n"


def test_the_document_has_its_marks() -> None:
    """Where the figures of a run go."""
    text = document.DOCUMENT.read_text(encoding="utf-8")
    assert text.count(document.BEGIN) == text.count(document.END) == 1


def test_a_file_that_is_no_result_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error, not a traceback."""
    assert command.main(["--from", str(tmp_path / "none.json")]) == 1
    assert "none.json" in capsys.readouterr().err


def test_a_quick_run_is_not_for_the_documents(capsys: pytest.CaptureFixture[str]) -> None:
    """Refused before anything runs."""
    with pytest.raises(SystemExit) as ended:
        command.main(["--quick", "--docs"])
    assert ended.value.code == 2
    assert "leave out --quick or --docs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("goals", "compares", "others"),
    [
        (["bench", "compare"], 1, 0),
        (["bench-compare"], 1, 0),
        (["compare"], 1, 0),
        (["bench"], 0, 1),
    ],
)
def test_make_knows_the_comparison_by_each_name(
    goals: list[str], compares: int, others: int
) -> None:
    """``make bench compare`` runs it once, and no other benchmark."""
    # Without what an outer make has in the environment: it would be part of that one.
    done = subprocess.run(
        ["env", "-u", "MAKEFLAGS", "-u", "MAKELEVEL", "make", "-n", *goals],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert sum("-m bench.compare" in line for line in lines) == compares
    assert sum(line.endswith("-m bench") for line in lines) == others
