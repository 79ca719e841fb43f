# SPDX-License-Identifier: Apache-2.0
"""A backend that drains: what an operator sees of it, over restarts, too."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.clients import receive, stream_to, who_answers
from tests.support.restart_traffic import RestartTraffic
from tests.support.router import Router, calm_config
from tests.support.stopped_router import SPEC
from xdp_router.adapters.control import CommandError

pytest_plugins = ("tests.support.netns", "tests.support.stopped_router")

QUICK = 'closed_linger = "1s"\npending_idle = "1s"\n'


def test_a_backend_that_drains_keeps_its_flows_and_gets_no_new_ones(router: Router) -> None:
    """Nobody's bytes are lost; a killed daemon's successor goes on; --wait returns at the end."""
    config = calm_config(SPEC, QUICK, fallback="b1")
    router.start(config, "--persist")
    with RestartTraffic(router, 20, 40) as traffic:
        kept = stream_to(router, "b1")
        done = router.cli("drain", "b1")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "b1 (web): draining\n"
        assert router.cli("drain", "b1").stdout == "b1 (web): draining already\n"
        rows = {row["name"]: row for row in router.json("backends")}
        assert (rows["b1"]["up"], rows["b1"]["draining"]) == (True, True)
        assert (rows["b2"]["up"], rows["b2"]["draining"]) == (True, False)
        assert "draining" in router.cli("backends").stdout
        assert router.ask("status")["backends_draining"] == 1
        assert {who_answers(router) for _ in range(20)} == {"b2"}
        traffic.wait_for_more(20)
        router.stop(signal.SIGKILL)
        router.start(config, "--persist")
        assert {who_answers(router) for _ in range(20)} == {"b2"}
        rows = {row["name"]: row for row in router.json("backends")}
        assert rows["b1"]["draining"]
        traffic.wait_for_more(20)
        kept.sendall(b"still there")
        assert receive(kept, 11) == b"still there"
        late = router.cli("drain", "b1", "--wait", "--timeout", "0.5")
        assert late.returncode == 1
        assert "b1 still has " in late.stderr
        assert "after 0.5 s, and goes on draining" in late.stderr
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(router.cli, "drain", "b1", "--wait", "--timeout", "40")
        threading.Event().wait(1.5)
        assert not waits.done(), "one connection is open"
        kept.close()
        done = waits.result()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "b1 (web): draining already, its last flow has ended\n"
    assert router.ask("backend_flows", backend="b1") == {
        "backend": "b1",
        "draining": True,
        "flows": 0,
    }
    assert router.cli("undrain", "b1").stdout == "b1 (web): taking new flows\n"
    stream_to(router, "b1").close()


def test_the_last_backend_and_an_unknown_one(router: Router) -> None:
    """When all drain, that is said, and new connections are refused; a wrong name is told."""
    router.start(calm_config(SPEC, QUICK))
    assert router.ask("drain", backend="b1")["warning"] == ""
    done = router.cli("drain", "b2")
    assert done.returncode == 0
    assert "no other backend of service web can take its new flows" in done.stderr
    with pytest.raises(ConnectionRefusedError):
        who_answers(router)
    with pytest.raises(CommandError, match="no backend is called 'b9'; there are b1, b2"):
        router.ask("drain", backend="b9")
    assert router.cli("drain", "b1", "--timeout", "3").returncode == 2
    assert router.ask("undrain", backend="b2")["changed"]
    assert who_answers(router) == "b2"
    router.stop()
    router.start(None)
    assert not any(row["draining"] for row in router.json("backends"))
