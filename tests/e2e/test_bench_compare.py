# SPDX-License-Identifier: Apache-2.0
"""The comparison through the real thing: every arm reaches the servers, by what it is named for."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.compare import arms as of
from bench.compare import run
from bench.compare.client import PROGRAM, Connection
from bench.compare.scenarios import FARTHER, RATE, STALLS, Scenario
from tests.support.privileges import require_program
from xdp_router.lab.stall import StallSchedule

pytest_plugins = ("tests.support.netns",)

ROOT = Path(__file__).parents[2]
SECOND_NS = 1_000_000_000
CONNECTIONS = 30


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client, compiled as ``make`` does."""
    built = tmp_path_factory.mktemp("client") / PROGRAM.name
    source = ROOT / "bench" / "compare" / "first_byte.c"
    clang = require_program("clang", "clang")
    subprocess.run([clang, "-O2", str(source), "-o", str(built)], check=True, timeout=60)
    return built


@pytest.fixture(scope="module")
def here(private_mounts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[run.Place]:
    """Lab, router and the other arms."""
    with run.place(tmp_path_factory.mktemp("compare")) as place:
        yield place


def answers(
    here: run.Place, scenario: Scenario, name: str, program: Path
) -> tuple[list[Connection], dict[str, int]]:
    """Connections of one arm, and what XDP counted meanwhile."""
    (arm,) = (each for each in here.arms if each.name == name)
    before = here.router.counters()
    length_ns = CONNECTIONS * SECOND_NS // RATE
    done = run.measure_slice(here, scenario, arm, 1, length_ns=length_ns, program=program)
    after = here.router.counters()
    assert len(done.connections) == CONNECTIONS
    return list(done.connections), {n: v - before[n] for n, v in after.items() if v != before[n]}


COUNTERS = {
    of.DIRECT: (),
    of.NFTABLES: (),
    of.HASH: ("decided_hash", "budget_service"),
    of.ROUNDROBIN: (),
    of.LEASTCONN: (),
    of.RACE: ("reinjected",),
    of.SNAPSHOT: ("decided_snapshot",),
    of.INLINE: ("decided_inline",),
}


@pytest.mark.parametrize("name", of.ARMS)
def test_each_arm_reaches_the_servers_by_its_own_way(
    here: run.Place, program: Path, name: str
) -> None:
    """All connections are answered, and decided by what the arm is named for, or not by us."""
    if name in here.missing:
        assert "sudo make bench-deps" in here.missing[name]
        return
    run.prepare(here, FARTHER, ())
    done, counted = answers(here, FARTHER, name, program)
    assert Counter(each.result for each in done) == {"ok": CONNECTIONS}
    assert {each.answer for each in done} <= {"b1", "b2", "b3"}
    assert all(0 < each.connect_ns < each.first_ns for each in done)
    for counter in COUNTERS[name]:
        # Not all: a daemon that gets no CPU for 100 ms is passed over.
        assert counted[counter] > CONNECTIONS // 2
    if not COUNTERS[name]:
        assert "first_packet" not in counted
    far = [each for each in done if each.answer == "b2"]
    if name in (of.DIRECT, of.NFTABLES):
        assert len(far) == CONNECTIONS // 3
    assert all(each.first_ms > 40 for each in far)


def test_stalls_begin_with_the_connections(here: run.Place, program: Path) -> None:
    """Who comes in a server's window, as the seed has it, gets an answer 50 ms later at least."""
    run.prepare(here, STALLS, ())
    (arm,) = (each for each in here.arms if each.name == of.DIRECT)
    done = run.measure_slice(here, STALLS, arm, 5, length_ns=SECOND_NS, program=program)
    held = []
    for number in range(len(STALLS.delays_ns)):
        stall = STALLS.stall(number, 5)
        assert stall is not None
        windows = [StallSchedule(stall, 0).window(period) for period in (0, 1)]
        held += [
            one.first_ms
            for at, (start_ns, one) in enumerate(zip(done.starts_ns, done.connections, strict=True))
            if at % 3 == number
            and any(begin <= start_ns < end - stall.extra_ns for begin, end in windows)
        ]
    assert len(held) > 10
    assert min(held) > 50


def test_a_server_that_is_not_there_is_a_failure(here: run.Place, program: Path) -> None:
    """A port that nobody listens at is refused, and named so."""
    arm = of.Arm("nobody", here.arms[0].source, (("198.19.1.2", 9),))
    done = run.measure_slice(here, FARTHER, arm, 1, length_ns=SECOND_NS // 40, program=program)
    assert {each.result for each in done.connections} == {"refused"}
    assert {each.first_ms for each in done.connections} == {5_000}
