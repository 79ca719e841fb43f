# SPDX-License-Identifier: Apache-2.0
"""One run: the clients talk, trouble is made at its time, and in the end all is looked at."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
import traceback
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.support.netns import wait_for
from tests.support.router import Router
from xdp_router.adapters.control import ControlError

from . import leaks, quiet
from .cast import FLOW_IDLE_S, LINGER_S, Wishes, backend_name
from .doers import Doers, Flooder
from .judge import Done, Judge, Rules
from .report import Outcome
from .schedule import Act, Guard, Kind, Trouble, acts_of, make_schedule
from .traffic import story_of

STREAMS, SHORTS, ASKERS = 104, 72, 24
BEGIN_S = 90.0
POLL_S = 0.1
SAMPLE_S = 2.0
END_S = 60.0
WATCHED = (
    *("refused_no_backend", "pending_insert_failed", "pending_reply_taken", "pick_unusable"),
    *("nat_ports_exhausted", "tail_call_missed", "no_path", "orphan_reset"),
)
NEVER = ("tail_call_missed",)
"""Of these: what no trouble excuses."""
SWEEP_S = 20.0
"""Within that a busy machine sweeps its tables once more."""
TOTALS = ("xdp_router_packets", "xdp_router_bytes", "xdp_router_flows")
_SPARE_S = 30.0
"""What a busy machine may need beyond the lifetimes until the tables are empty."""


class Clients:
    """The process with all clients, from the run's side."""

    def __init__(self, router: Router, seed: int, rules: Rules) -> None:
        self._log = router.directory / "clients.log"
        argv = [sys.executable, "-m", "tests.chaos.traffic", str(seed)]
        argv += [*map(str, (STREAMS, SHORTS, ASKERS)), str(rules.patience_s)]
        with self._log.open("wb") as output:
            self._process = router.lab.client.spawn(
                argv,
                name="clients",
                env={"PYTHONPATH": str(Path(__file__).parents[2])},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._read = self._log.open("rb")
        self._rest = b""
        self.begun = self.ready = False

    def news(self) -> Iterator[dict[str, Any]]:
        """Stories that were told since the last time."""
        *lines, self._rest = (self._rest + self._read.read()).split(b"\n")
        for line in lines:
            if not line.startswith(b"{"):
                continue
            told = json.loads(line)
            self.begun |= "begun" in told
            self.ready |= "ready" in told
            if "story" in told:
                yield told["story"]

    def check(self) -> None:
        """Fail if they have ended by themselves."""
        assert self._process.poll() is None, self._log.read_text()[-4000:]

    def stop(self) -> None:
        """Let them come to their end."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(END_S)

    def close(self) -> None:
        """End them at once."""
        self._process.kill()
        self._process.wait()
        self._read.close()


class ChaosRun:
    """A run on a router that is not started yet."""

    def __init__(self, router: Router, seed: int, length_s: float) -> None:
        self._router = router
        self._wishes = Wishes()
        self._schedule = make_schedule(seed, length_s)
        self._guard = Guard()
        self._lock = threading.Lock()
        self._aborted = threading.Event()
        self._over = threading.Event()
        self._totals: dict[str, float] = {}
        self._sampled_s = 0.0
        self._counters: dict[str, int] = {}
        self.outcome = Outcome(seed, length_s, time.monotonic(), Rules(dead_after_s=2.0))
        self._judge = Judge(self.outcome.rules, self.outcome.troubles)

    def run(self) -> Outcome:
        """All of it; what was found is in the outcome. Raises only if it cannot go on."""
        outcome = self.outcome
        with contextlib.ExitStack() as undo:
            self._flooder = undo.enter_context(Flooder(self._router, outcome.seed))
            self._doers = Doers(self._router, self._flooder, self._wishes)
            self._doers.start_daemon()
            self._clients = Clients(self._router, outcome.seed, outcome.rules)
            undo.callback(self._clients.close)
            wait_for(self._all_have_begun, BEGIN_S, "all clients have begun")
            outcome.started_s = time.monotonic()
            before = quiet.look(self._router)
            # Servers that are started again live as long as the thread that did it.
            hosts = threading.Thread(target=self._host_lane, name="hosts")
            undo.callback(hosts.join)
            undo.callback(self._over.set)
            undo.callback(self._aborted.set)
            hosts.start()
            self._lane(acts_of(self._schedule, control=True))
            self._until(outcome.length_s)
            wait_for(lambda: not self._guard.going, END_S, "all trouble is over")
            self._look_on()
            self._clients.stop()
            self._look_on()
            if not self._clients.ready:
                outcome.faults.append("the clients ended before they were done")
            self._quiet(before)
            self._count()
            outcome.faults += [
                f"{name}: {more} at {at_s - outcome.started_s:.2f} s"
                for at_s, name, more in outcome.counted
                if name in NEVER
            ]
            self._look_at_logs()
        return outcome

    def _all_have_begun(self) -> bool:
        self._clients.check()
        self._take_stories()
        return self._clients.begun

    # Trouble

    def _host_lane(self) -> None:
        try:
            self._lane(acts_of(self._schedule, control=False), looks_on=False)
        except BaseException:
            self.outcome.faults.append(f"hosts: {traceback.format_exc()}")
            self._aborted.set()
        self._over.wait()

    def _lane(self, acts: list[Act], *, looks_on: bool = True) -> None:
        open_: dict[int, Done] = {}
        for act in acts:
            self._until(act.at_s, looks_on=looks_on)
            if self._aborted.is_set():
                return
            if act.begins:
                done = self._begin(act.trouble)
                if done is not None:
                    open_[act.trouble.number] = done
            elif (done := open_.pop(act.trouble.number, None)) is not None:
                self._end(done)

    def _begin(self, trouble: Trouble) -> Done | None:
        with self._lock:
            now_s = time.monotonic()
            if not self._guard.may_begin(trouble, now_s):
                self.outcome.skipped += 1
                return None
            self._guard.begin(trouble)
            done = Done(trouble, now_s)
            self.outcome.troubles.append(done)
        self._do(trouble, "begin")
        done.settled_s = time.monotonic()
        return done

    def _end(self, done: Done) -> None:
        done.ending_s = time.monotonic()
        self._do(done.trouble, "end")
        with self._lock:
            done.ended_s = time.monotonic()
            self._guard.end(done.trouble, done.ended_s - done.began_s, done.ended_s)

    def _do(self, trouble: Trouble, what: str) -> None:
        try:
            (self._doers.begin if what == "begin" else self._doers.end)(trouble)
        except (AssertionError, ControlError, OSError) as error:
            self.outcome.faults.append(f"{what} of {trouble}: {error!r}")

    # Looking on

    def _until(self, at_s: float, *, looks_on: bool = True) -> None:
        until_s = self.outcome.started_s + at_s
        while not self._aborted.is_set():
            if looks_on:
                self._look_on()
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return
            time.sleep(min(POLL_S, left_s))

    def _look_on(self) -> None:
        self._take_stories()
        self._watch_counters()
        if time.monotonic() - self._sampled_s >= SAMPLE_S and self._router.running:
            self._sampled_s = time.monotonic()
            self._sample()

    def _take_stories(self) -> None:
        for told in self._clients.news():
            story = story_of(told)
            self.outcome.stories.append(story)
            if not self._judge.judge(story).lawful and len(self.outcome.explained) < 20:
                self._watch_counters()
                self.outcome.explained[story.number] = self._doers.explain(story.client)

    def _watch_counters(self) -> None:
        """Note what the data plane counts that should be rare, and when."""
        at_s = time.monotonic()
        counters = self._router.counters()
        for name in WATCHED:
            more = counters[name] - self._counters.get(name, counters[name])
            if more:
                self.outcome.counted.append((at_s, name, more))
            self._counters[name] = counters[name]

    def _sample(self) -> None:
        """Totals never go back, whoever keeps them; those of a backend that was removed begin
        anew."""
        now = self._totals_now()
        self.outcome.faults += leaks.went_back(self._totals, now)
        self._totals.update(now)

    def _totals_now(self) -> dict[str, float]:
        found = self._router.lab.router.run(_scrape)
        gone = {
            each.trouble.target
            for each in self.outcome.troubles
            if each.trouble.kind is Kind.REMOVE
        }
        return {name: value for name, value in found.items() if name.partition(" ")[0] not in gone}

    # The end

    def _quiet(self, before: leaks.Quiet) -> None:
        outcome = self.outcome
        last = leaks.Quiet()

        def empty() -> bool:
            nonlocal last
            last = quiet.look(self._router)
            return not leaks.complaints(before, last)

        began_s = time.monotonic()
        until_s = began_s + FLOW_IDLE_S + LINGER_S + _SPARE_S
        while not empty() and time.monotonic() < until_s:
            time.sleep(0.5)
        outcome.faults += leaks.complaints(before, last)
        rests = sum(last.resting.values())
        outcome.figures |= {
            "frames of floods": str(self._flooder.sent),
            "descriptors of the daemon, before and after": f"{before.fds}/{last.fds}",
            "KiB of the daemon, before and after": f"{before.kib}/{last.kib}",
            "seconds until the tables were empty": f"{time.monotonic() - began_s:.1f}",
            "ports of fullnat that rest": str(rests),
        }

    def _count(self) -> None:
        """What was carried is in the totals, once a sweep has met the last of it."""
        compared: Counter[str] = Counter()
        for story in self.outcome.stories:
            if story.host:
                compared[backend_name(story.service, story.host)] += story.octets

        def missing() -> list[str]:
            now = {
                name.partition(" ")[0]: value
                for name, value in self._totals_now().items()
                if name.endswith("bytes_total request")
            }
            return ["nothing is counted"] * (not now) + leaks.uncounted(compared, now)

        until_s = time.monotonic() + SWEEP_S
        while (found := missing()) and time.monotonic() < until_s:
            time.sleep(SAMPLE_S / 4)
        self.outcome.faults += found

    def _look_at_logs(self) -> None:
        for text in (*self._doers.logs, self._router.log.read_text()):
            for line in text.splitlines():
                if (
                    "Traceback" in line
                    or '"event": "fault"' in line
                    or '"level": "critical"' in line
                ):
                    self.outcome.faults.append(f"log: {line[:300]}")


def _scrape() -> dict[str, float]:
    """Totals of traffic by "BACKEND NAME DIRECTION"; nothing if nobody answers."""
    try:
        with urllib.request.urlopen("http://127.0.0.1:9850/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except OSError:
        return {}
    found = {}
    for family in text_string_to_metric_families(text):
        if family.name not in TOTALS or family.type != "counter":
            continue
        for sample in family.samples:
            backend, direction = sample.labels["backend"], sample.labels.get("direction", "")
            found[f"{backend} {sample.name} {direction}"] = sample.value
    return found
