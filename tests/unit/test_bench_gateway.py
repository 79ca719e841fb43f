# SPDX-License-Identifier: Apache-2.0
"""The parts of the gateway's benchmark that a wrong figure could come from."""

from __future__ import annotations

import json
import os
import random
import select
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.gateway import cpu, figures, peers, run, venvs
from bench.gateway.answers import Call, Piece, judge, parsed
from bench.gateway.client import Plan
from bench.gateway.figures import figures_of, rows_of
from bench.gateway.place import DIRECT, folder_name
from bench.gateway.run import SCENARIOS, Results, Slice, turns
from bench.gateway.timer import Timer
from bench.ttft import arms
from xdp_router.lab.engine_answer import CHAT, LAST_CHUNK, Voice, Wish, chunk, head
from xdp_router.lab.engine_behaviour import Behaviour

MS = 1_000_000
AT, ENGINES = ("198.18.0.1", 8100), [("198.19.1.2", 9000), ("198.19.2.2", 9000)]


def a_stream() -> list[Piece]:
    """A role, a comment, three tokens and an end, each in its time."""
    voice = Voice("e1", 1, Wish(CHAT, "m", True), Behaviour())
    headers = {
        "Content-Type": "text/event-stream",
        "X-Engine": "e1",
        "Transfer-Encoding": "chunked",
    }
    said = [
        head(200, headers, keep=True),
        chunk(voice.role()) + chunk(b": ping\n\n"),
        chunk(voice.token(0, 30 * MS)),
        chunk(voice.token(1, 40 * MS)) + chunk(voice.token(2, 40 * MS)),
        chunk(voice.end(3)) + LAST_CHUNK,
    ]
    return [((11 + 10 * number) * MS, data) for number, data in enumerate(said)]


def test_a_stream_is_judged() -> None:
    """What is no token does not count; gaps and ways are those of tokens."""
    call = judge(Call(), a_stream(), MS)
    assert (call.error, call.status, call.engine, call.tokens) == ("", 200, "e1", 3)
    assert (call.head_ns, call.first_ns, call.end_ns) == (10 * MS, 30 * MS, 50 * MS)
    assert call.gaps_ns == [10 * MS, 0]
    assert call.transit_ns == [1 * MS, 1 * MS, 1 * MS]
    assert parsed(call.line() + "\n" + call.line()) == [call, call]


def test_pieces_may_be_cut_anywhere(rng: random.Random) -> None:
    """A token counts when its last byte is there."""
    whole = b"".join(data for _, data in a_stream())
    for _ in range(200):
        cuts = sorted(rng.sample(range(1, len(whole)), 12))
        parts = zip([0, *cuts], [*cuts, len(whole)], strict=True)
        pieces = [(number * MS, whole[start:end]) for number, (start, end) in enumerate(parts)]
        call = judge(Call(), pieces, 0)
        assert (call.tokens, call.error, len(call.gaps_ns)) == (3, "", 2)
        assert 0 <= call.head_ns <= call.first_ns <= call.end_ns == 12 * MS


def test_failures_are_none_of_the_figures() -> None:
    """A status, no token, half an answer, none at all."""
    assert judge(Call(error="reset"), a_stream()[:3], 0).error == "reset"
    assert judge(Call(), [(1, head(503, {}, keep=False))], 0).error == "status 503"
    assert judge(Call(), a_stream()[:2], 0).error == "no token"
    assert judge(Call(), [(1, b"HTTP/1.1 200 OK\r\n")], 0).error == "no whole head"
    assert judge(Call(error="timeout"), [], 0) == Call(error="timeout")
    whole = [(5, head(200, {"Content-Length": "2"}, keep=True)), (9, b"{}")]
    call = judge(Call(), whole, 0)
    assert (call.error, call.first_ns, call.tokens) == ("", 9, 1)


def test_requests_are_due_by_their_seed() -> None:
    """As many for each seed, in order, within the time; what is sent fits what is asked."""
    plans = [Plan([AT], rate=50, seconds=2, seed=seed) for seed in (1, 1, 2)]
    first, again, other = [plan.dues_ns() for plan in plans]
    assert first == again != other
    assert len(first) == len(other) == 100
    assert first == sorted(first)
    assert 0 <= first[0] < first[-1] < 2_000_000_000
    said, body = Plan([AT], keep=False, mock="tokens=1").request().split(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in said
    assert b"x-mock: tokens=1" in said
    assert b"Connection: close" in said
    assert json.loads(body)["stream"] is True


def test_a_timer_is_due_in_its_time() -> None:
    """Not before; past times at once."""
    timer = Timer()
    try:
        at_ns = time.monotonic_ns() + 20 * MS
        timer.arm(at_ns)
        assert select.select([timer.fd], [], [], 0)[0] == []
        assert select.select([timer.fd], [], [], 10)[0] == [timer.fd]
        assert time.monotonic_ns() >= at_ns
        timer.taken()
        timer.taken()
        assert select.select([timer.fd], [], [], 0)[0] == []
        timer.arm(-5)
        assert select.select([timer.fd], [], [], 10)[0] == [timer.fd]
    finally:
        timer.close()


def test_cpu_time_is_of_all_processes() -> None:
    """Of a child's child that works, too; nothing of what is gone."""
    work = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass\n"
    code = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {work + 'print(flush=True); input()'!r}],"
        " stdin=0, stdout=1)\nchild.wait()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert len(cpu.tree(process.pid)) == 2
        assert cpu.used_ns(process.pid) > 0.2e9
    finally:
        process.communicate(b"\n")
    assert cpu.used_ns(process.pid) == 0


def test_without_schedstat_ticks_are_read(tmp_path: Path) -> None:
    """A kernel may not tell it; time of children that are gone is always by ticks."""
    folder = tmp_path / "7"
    folder.mkdir()
    fields = ["S", "1", *["0"] * 9, "3", "4", "5", "6", *["0"] * 20]
    (folder / "stat").write_text("7 (a) b) " + " ".join(fields))
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    assert cpu.used_ns(7, tmp_path) == 18 * tick_ns
    task = folder / "task" / "7"
    task.mkdir(parents=True)
    (task / "schedstat").write_text("1000 2 3\n")
    assert cpu.used_ns(7, tmp_path) == 1000 + 11 * tick_ns


def test_folders_have_no_blanks() -> None:
    """Each proxy has one of its own, whose path is one word."""
    names = [folder_name(each.name) for each in (*peers.PROXIES, *arms.proxies())]
    assert len(set(names)) == len(names)
    assert not any(" " in each or "(" in each for each in names)


def test_turns_have_each_arm_once() -> None:
    """Another one first in each round."""
    names = ("a", "b", "c")
    rounds = [turns(names, number) for number in range(6)]
    assert all(sorted(each) == [*names] for each in rounds)
    assert len({each[0] for each in rounds[:3]}) > 1


def test_configurations_of_peers(tmp_path: Path) -> None:
    """All engines, connections that stay, nothing held back, nothing logged."""
    texts = {}
    for proxy in peers.PROXIES:
        folder = tmp_path / proxy.name
        folder.mkdir()
        started = proxy.start(folder, AT, ENGINES)
        assert any(str(folder) in each for each in started.argv)
        texts[proxy.name] = "".join(each.read_text() for each in folder.iterdir())
        for host, _ in ENGINES:
            assert host in texts[proxy.name]
    assert "proxy_buffering off" in texts["nginx"]
    assert "access_log off" in texts["nginx"]
    assert 'proxy_set_header Connection ""' in texts["nginx"]
    assert "option http-no-delay" in texts["HAProxy"]
    assert "http-reuse always" in texts["HAProxy"]
    assert "access_log" not in texts["Envoy"]
    assert tomllib.loads(texts["xdp-router"])["listener"][0]["address"] == "198.18.0.1:8100"


def a_slice(arm: str, first_ms: float, *, cpu_ms: float = 0.3, bad: int = 0) -> Slice:
    """A hundred requests alike, and some that failed."""
    good = Call("", 200, "e1", 0, 0, round(first_ms * MS), 9 * MS, 2, [5 * MS], [MS, 2 * MS])
    calls = [good] * 100 + [Call(error="reset")] * bad
    return Slice("sse", arm, calls, round(len(calls) * cpu_ms * MS), len(calls))


def test_goals_are_judged_by_what_is_added() -> None:
    """Beside the better of the two fast ones, and so many times less than the others."""
    slices = [
        a_slice(DIRECT, 0.3, cpu_ms=0),
        a_slice("nginx", 0.5),
        a_slice("HAProxy", 0.4, bad=3),
        a_slice("Envoy", 0.9),
        a_slice("LiteLLM", 20.0),
    ]
    (row,) = rows_of(Results(slices))
    assert row.table is not None
    line = next(each for each in row.table.lines if each[0] == "HAProxy")
    assert line == (
        "HAProxy",
        "100",
        "0.40",
        "+0.10",
        "0.40",
        "+0.10",
        "+0.00",
        "+0.00",
        "0.30",
        "3",
    )
    near, envoy, litellm = rows_of(Results([*slices, a_slice(figures.OURS, 0.45)]))[1:]
    assert (near.ok, envoy.ok, litellm.ok) == (True, True, True)
    near, envoy, litellm = rows_of(Results([*slices, a_slice(figures.OURS, 0.75)]))[1:]
    assert (near.ok, envoy.ok, litellm.ok) == (False, False, False)
    assert rows_of(Results()) == []


def test_figures_leave_out_failures() -> None:
    """They are counted by their reason; an arm without any good request has no figure."""
    found = figures_of([a_slice("a", 1.0, bad=2), a_slice("a", 3.0)], "sse")["a"]
    assert (len(found.first), found.failed["reset"]) == (200, 2)
    assert found.on_way == [2.0] * 200
    none = figures_of([Slice("sse", "b", [Call(error="reset")])], "sse")["b"]
    assert none.first_ms(0.5) != none.first_ms(0.5)


def test_an_environment_is_made_once(tmp_path: Path) -> None:
    """What can't be had is told, and tried again next time; what is there is left alone."""
    there = tmp_path / "there"
    there.mkdir()
    (there / ".package").write_text("some==1")
    told: list[str] = []
    called: list[str] = []
    packages = {"there": "some==1", "new": "some==2", "not": "none==1"}

    def call(argv: Sequence[str], **options: Any) -> None:
        called.append(argv[-1])
        if argv[-1] == "none==1":
            raise subprocess.CalledProcessError(1, argv, stderr=b"well\nno such package\n")
        if "venv" in argv:
            Path(argv[-1]).mkdir(exist_ok=True)

    for _ in range(2):
        failed = venvs.install(told.append, tmp_path, packages, call)
        assert failed == {"not": "none==1 was not installed: no such package"}
    assert called == [str(tmp_path / "new"), "some==2", *[str(tmp_path / "not"), "none==1"] * 2]
    assert len(told) == 3


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_scenarios_are_behaviours(scenario: run.Scenario) -> None:
    """The mock engine understands them."""
    Behaviour().changed(scenario.engines)
