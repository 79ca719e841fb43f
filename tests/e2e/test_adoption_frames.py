# SPDX-License-Identifier: Apache-2.0
"""Adopting loses not one frame: each number of a steady stream arrives exactly once."""

from __future__ import annotations

import contextlib
import signal
import threading
import time

import pytest

from tests.support.clients import connect, who, who_answers
from tests.support.numbered_frames import NumberedFrames
from tests.support.router import Router, calm_config
from tests.support.stopped_router import SPEC

pytest_plugins = ("tests.support.netns", "tests.support.stopped_router")

NAMES = ("b1", "b2")
ADOPTIONS = 3
RATE = 20_000


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["exchange", "sigkill"])
def test_each_frame_arrives_exactly_once(router: Router, end: signal.Signals) -> None:
    """While the program is exchanged for the other loader's and back, again; by SIGKILL as well.

    New connections are answered meanwhile, by XDP's own decision if there is no daemon.
    """
    config = calm_config(SPEC, fallback="b2")
    router.start(config, "--persist", "--loader", "object")
    answered: list[str] = []
    faults: list[str] = []
    done = threading.Event()

    def dial() -> None:
        while not done.is_set():
            try:
                answered.append(who_answers(router, timeout=10))
            except (OSError, AssertionError) as error:
                faults.append(repr(error))
            time.sleep(0.02)

    with connect(router) as peer, contextlib.ExitStack() as undo:
        backend = NAMES.index(who(peer))
        stream = NumberedFrames(router, peer.getsockname(), backend, RATE)
        undo.callback(stream.close)
        dialler = threading.Thread(target=dial)
        dialler.start()
        undo.callback(dialler.join)
        undo.callback(done.set)
        programs = {router.ask("status")["xdp_program_id"]}
        for number in range(ADOPTIONS):
            router.stop(end)
            before = len(answered)
            router.start(config, "--persist", "--loader", ("bcc", "object")[number % 2])
            programs.add(router.ask("status")["xdp_program_id"])
            assert len(answered) > before
        found = stream.end()
    assert len(programs) == ADOPTIONS + 1
    assert found["receiver_dropped"] == 0
    assert (found["missing"], found["twice"]) == (0, 0), found
    assert found["sent"] > RATE
    assert not faults, faults[:5]
    assert set(answered) <= set(NAMES)
