# SPDX-License-Identifier: Apache-2.0
"""The daemon's end, wished or not: what goes on without it, and what it leaves behind."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time

import pytest

from tests.support.clients import connect, digest, random_bytes, receive, who, who_answers
from tests.support.netns import wait_for
from tests.support.router import Router, calm_config, heartbeat_stale
from tests.support.stopped_router import IN_BOTH_MODES, SPEC, reserved_ports
from xdp_router.adapters import sysctl

pytest_plugins = ("tests.support.netns", "tests.support.stopped_router")

pytestmark = IN_BOTH_MODES

RESERVED = "net.ipv4.ip_local_reserved_ports"
STALE = 'heartbeat_stale = "300ms"'
SPEC_INTERFACES = ("client0", "be1", "be2")
FORTY_MB = 40_000_000


def assert_service_is_nobodys(router: Router) -> None:
    """The kernel alone does not route to the service."""
    with pytest.raises(OSError, match=r"unreachable|No route") as refused:
        connect(router, timeout=3)
    assert refused.value.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_detaches_and_unpins_everything(router: Router, number: signal.Signals) -> None:
    """SIGTERM and SIGINT end the daemon with exit code 0; the host is then as before."""
    router.lab.router.run(lambda: sysctl.Sysctls().set(RESERVED, "50000-50010"))
    router.start()
    assert who_answers(router) in ("b1", "b2")
    assert all(link.xdp_prog_id for link in router.links().values())
    assert reserved_ports(router) == "50000-50010,61000-61999"
    assert router.stop(number) == 0
    assert not router.left_behind()
    assert reserved_ports(router) == "50000-50010"
    assert [line["event"] for line in router.events()][-2:] == ["detaching", "stopped"]
    assert router.cli("status").returncode == 1
    assert router.cli("flows").returncode == 1
    assert_service_is_nobodys(router)


def test_killed_daemon_is_not_missed(router: Router) -> None:
    """SIGKILL in mid-stream: the stream goes on, new connections succeed, maps can be read.

    ``detach`` then takes it all away, and another daemon can start.
    """
    reserved = reserved_ports(router)
    router.start(calm_config(SPEC, STALE, fallback="b2"))
    payload = random_bytes(FORTY_MB)
    with connect(router, timeout=20) as stream:
        sender = threading.Thread(target=stream.sendall, args=(payload,))
        sender.start()
        received = receive(stream, 2_000_000)
        assert router.stop(signal.SIGKILL) == -signal.SIGKILL
        assert sender.is_alive(), "the stream ended before the daemon did"

        # Held at this moment, or decided by XDP: on the SYN's retransmit at the latest.
        assert who_answers(router, timeout=10) in ("b1", "b2")
        heartbeat_stale()
        for _ in range(5):
            begun = time.monotonic()
            assert who_answers(router) == "b2"
            assert time.monotonic() - begun < 0.9, "it took a retransmit"

        received += receive(stream, len(payload) - len(received))
        sender.join()
        assert digest(received) == digest(payload)

        rows = router.json("flows")
        (old,) = [row for row in rows if row["client"].endswith(f":{stream.getsockname()[1]}")]
        assert old["reply_bytes"] > FORTY_MB
        assert old["decision"]["mode"] == "race"
        alone = [row for row in rows if row["decision"]["reason"] == "no_heartbeat"]
        assert len(alone) >= 5
        assert {(row["backend"], row["decision"]["mode"]) for row in alone} == {("b2", "fallback")}
        assert "no heartbeat" in router.cli("flows").stdout
        assert router.json("counters")["heartbeat_stale"] >= 5

    status = router.cli("status")
    assert status.returncode == 1
    assert "no daemon listens on" in status.stderr
    # No daemon says so earlier, so "gone" is believed only after a second.
    assert reserved_ports(router).endswith("61000-61999")
    assert router.control.exists()
    wait_for(lambda: router.routerd("detach", "be1").returncode == 0, 10, "detach")
    assert reserved_ports(router) == reserved
    assert not router.left_behind()
    assert_service_is_nobodys(router)
    router.start()
    assert who_answers(router) in ("b1", "b2")
    assert router.stop() == 0


def test_without_daemon_and_fallback_the_hash_decides(router: Router) -> None:
    """A service without a fallback is spread over its backends, the same way for a tuple."""
    lines = calm_config(SPEC, STALE).splitlines()
    router.start("\n".join(line for line in lines if not line.startswith("fallback")))
    router.stop(signal.SIGKILL)
    heartbeat_stale()
    got = {}
    for port in range(43_000, 43_024):
        got[port] = who_answers(router, source=(router.lab.addresses.client, port))
    assert set(got.values()) == {"b1", "b2"}
    rows = router.json("flows", "--client", router.lab.addresses.client)
    assert {row["decision"]["mode"] for row in rows} == {"hash"}
    assert {row["decision"]["reason"] for row in rows} == {"no_heartbeat"}
    assert {int(row["client"].partition(":")[2]): row["backend"] for row in rows} == got
    wait_for(lambda: router.routerd("detach", "client0").returncode == 0, 10, "detach")


def test_established_flow_survives_a_frozen_daemon(router: Router) -> None:
    """While the daemon hangs (SIGSTOP), flows go on and new ones are decided by XDP."""
    router.start(calm_config(SPEC, STALE, fallback="b2"))
    with connect(router) as old:
        first = who(old)
        os.kill(router.pid, signal.SIGSTOP)
        try:
            heartbeat_stale()
            assert who_answers(router) == "b2"
            old.sendall(b"still there")
            assert receive(old, 11) == b"still there"
        finally:
            os.kill(router.pid, signal.SIGCONT)

        def raced() -> bool:
            with connect(router) as peer:
                who(peer)
                flow = router.flow(peer.getsockname())
            assert flow is not None
            return bool(flow["decision"]["mode"] == "race")

        wait_for(raced, 5, "the daemon decides again")
        flow = router.flow(old.getsockname())
        assert flow is not None
        assert flow["backend"] == first
    assert router.stop() == 0


def test_streams_outlive_a_daemon_that_was_frozen_for_longer_than_they_may_be_idle(
    router: Router,
) -> None:
    """What was used meanwhile lives on; what was silent all the time goes, as it should."""
    times = 'flow_idle = "8s"\nclosed_linger = "1s"\npending_idle = "1s"'
    router.start(calm_config(SPEC, f"{STALE}\n{times}"))
    with connect(router) as used, connect(router) as silent:
        name, _ = who(used), who(silent)
        time.sleep(0.1)  # some heartbeats: the silent one is known to have been silent before
        begun = time.monotonic()
        os.kill(router.pid, signal.SIGSTOP)
        try:
            while time.monotonic() - begun < 9.5:
                used.sendall(b"x")
                assert used.recv(1) == b"x"
                time.sleep(0.05)
        finally:
            os.kill(router.pid, signal.SIGCONT)
        # Well before the used one would be idle for want of traffic since: machines are slow.
        wait_for(lambda: router.flow(silent.getsockname()) is None, 6, "the silent one is gone")
        # A sweep has passed at least; without a packet of its own it is not idle yet.
        used.sendall(b"still there")
        assert receive(used, 11) == b"still there"
        flow = router.flow(used.getsockname())
        assert flow is not None
        assert (flow["backend"], flow["state"]) == (name, "established")
        assert flow["age_s"] > 9
    assert router.stop() == 0


def test_log_has_one_line_per_decision(router: Router, place: Router) -> None:
    """Each decision is one structured line that says what it was made from."""
    router.start()
    with connect(router) as peer:
        name = who(peer)
        host, port = peer.getsockname()
    wait_for(lambda: router.events("decision"), 5)
    (line,) = router.events("decision")
    assert (line["client"], line["backend"]) == (f"{host}:{port}", name)
    assert (line["service"], line["mode"], line["reason"]) == ("web", "race", "race_won")
    assert line["latency_us"] > 0
    assert set(line["rtts_us"]) <= {"b1", "b2"}
    (ready,) = router.events("ready")
    assert ready["interfaces"] == dict.fromkeys(SPEC_INTERFACES, place.xdp_mode)
    assert router.stop() == 0
