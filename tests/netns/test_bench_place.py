# SPDX-License-Identifier: Apache-2.0
"""The gateway's benchmark as a whole, as far as it goes without any of the proxies."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.gateway import deciding, relays
from bench.gateway.figures import rows_of
from bench.gateway.peers import Address, Proxy, Started
from bench.gateway.place import DIRECT
from bench.gateway.run import SCENARIOS, measure
from bench.gateway.run import WARM as WARM_CALLS
from bench.ttft import run as ttft
from bench.ttft import workload

pytest_plugins = ("tests.support.netns",)

RELAY = """
import asyncio, sys
async def pipe(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()
async def serve(reader, writer):
    there = await asyncio.open_connection(sys.argv[3], int(sys.argv[4]))
    await asyncio.gather(pipe(reader, there[1]), pipe(there[0], writer))
async def main():
    server = await asyncio.start_server(serve, sys.argv[1], int(sys.argv[2]))
    await server.serve_forever()
asyncio.run(main())
"""


def relay(directory: Path, at: Address, engines: Sequence[Address]) -> Started:
    """Something that costs CPU and time on the way to the first engine."""
    del directory
    where = (at[0], str(at[1]), engines[0][0], str(engines[0][1]))
    return Started((sys.executable, "-c", RELAY, *where))


def broken(directory: Path, at: Address, engines: Sequence[Address]) -> Started:
    """What ends with a complaint."""
    del directory, at, engines
    return Started((sys.executable, "-c", "raise SystemExit('no such option')"))


def test_arms_are_measured_or_named(tmp_path: Path, private_mounts: Path) -> None:
    """Direct and relayed requests have figures; who does not start, or is not there, has a reason;
    LiteLLM's low rate is anybody's who asks for one."""
    told: list[str] = []
    proxies = (
        Proxy("relay", relay, lambda: "", rate=20.0),
        Proxy("broken", broken, lambda: ""),
        Proxy("absent", broken, lambda: "nobody installed it"),
    )
    results = measure(tmp_path, 1, 0.5, told.append, SCENARIOS[:1], proxies, undisturbed=True)
    assert results.missing["absent"] == "nobody installed it"
    assert "no such option" in results.missing["broken"]
    by_name = {each.arm: each for each in results.slices}
    assert {name: len(each.calls) for name, each in by_name.items()} == {DIRECT: 50, "relay": 10}
    for each in results.slices:
        assert {(call.error, call.tokens) for call in each.calls} == {("", 8)}
    assert by_name["relay"].cpu_ns > 0
    assert {call.engine for call in by_name["relay"].calls} == {"e1"}
    assert {call.engine for call in by_name[DIRECT].calls} == {"e1", "e2", "e3"}
    (row,) = rows_of(results)
    assert row.values["relay"]["cpu_ms"] > 0
    assert len(told) == 1


def test_first_tokens_are_measured(tmp_path: Path, private_mounts: Path) -> None:
    """By conversations, with engines that stall, queue and count; who is not there has a reason."""
    proxies = (Proxy("relay", relay, lambda: ""), Proxy("absent", broken, lambda: "not here"))
    results = ttft.measure(tmp_path, 1, 1.0, lambda _: None, ttft.SCENARIOS[1:], proxies)
    assert results.missing == {"absent": "not here"}
    (one,) = results.slices
    assert len(one.calls) == len(workload.schedule(ttft.RATE, 1.0, 1, ""))
    assert {call.error for call in one.calls} == {""}
    counted = one.engines[0]
    assert counted["completed"] == counted["requests"] == len(one.calls) + WARM_CALLS
    assert counted["prefill_bytes"] > 0 < counted["prefix_hits"]
    assert counted["busy_ns"] > 25_000_000 * len(one.calls)


def test_decisions_are_timed(tmp_path: Path, private_mounts: Path) -> None:
    """By the records of a gateway with a listener for each case."""
    found = deciding.measure(tmp_path / "d", 0.1, lambda _: None)
    assert tuple(found) == deciding.CASES
    assert {len(times) for times in found.values()} == {WARM_CALLS + 20}
    *judged, told = deciding.rows_of(found, deciding.lookups(5))
    assert [row.ok for row in judged] != [None, None]
    assert told.table is not None
    assert len(told.table.lines) == len(deciding.CASES)


def test_relays_are_measured(
    tmp_path: Path, private_mounts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes come through ours and without it; what is not there is named."""
    cases = relays.CASES[::3]
    assert {each for case in cases for each in case} == {each for c in relays.CASES for each in c}
    monkeypatch.setattr(relays, "CASES", cases)
    ours = [each for each in relays.PROXIES if each.name == relays.OURS]
    absent = Proxy("absent", relays.haproxy, lambda: "not here")
    found, missing = relays.measure(tmp_path / "r", 1, 0.2, lambda _: None, [*ours, absent])
    assert missing == {"absent": "not here"}
    assert {(each.arm, each.connections, each.bare) for each in found} == {
        (arm, *case) for arm in (DIRECT, relays.OURS) for case in cases
    }
    assert all(each.bytes > 0 for each in found)
    row = relays.row_of(found, missing)
    assert row.table is not None
    assert len(row.table.lines) == 4
