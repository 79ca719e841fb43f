# SPDX-License-Identifier: Apache-2.0
"""The gateway's processes as an operator meets them: start, reload, restart, crash and end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import stat
import threading
import time
from pathlib import Path

import pytest

from tests.support.certificate import write_certificate
from tests.support.fresh_netns import in_fresh_netns
from tests.support.gateway_process import (
    ADDRESS,
    DEADLINE_S,
    METRICS_PORT,
    PORT,
    Clients,
    GatewayProcess,
    Stream,
    backend,
    config_text,
    counters,
    gateways,
    get,
    page,
    total,
)
from tests.support.netns import wait_for
from xdp_router import __version__
from xdp_router.adapters.control import CommandError

METRICS = f'metrics = "{ADDRESS}:{METRICS_PORT}"'


def gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@in_fresh_netns
def test_two_workers_serve_and_end(tmp_path: Path) -> None:
    """Both accept; the control socket, metrics and sockets are there, and gone in the end."""
    with backend(), gateways(tmp_path) as (gateway,):
        gateway.config.write_text(config_text(more=METRICS))
        gateway.start()
        for _ in range(24):
            assert get() == b"hi\n"
        status = gateway.ask("status")
        assert (status["state"], status["pid"]) == ("serving", gateway.pid)
        assert [each["state"] for each in status["workers"]] == ["serving"] * 2
        (listener,) = gateway.ask("listeners")
        assert (listener["name"], listener["address"]) == ("web", f"{ADDRESS}:{PORT}")
        assert listener["mode"] == "inline"
        gateway.wait(lambda: gateway.ask("backends")[0]["state"] == "well", "the backend is well")
        gateway.wait(lambda: 'connections_total{listener="web"} 24.0' in page(), "all are counted")
        assert 'xdp_router_gateway_workers{state="serving"} 2.0' in page()
        assert stat.S_IMODE(gateway.control.stat().st_mode) == 0o660
        beside = gateway.control.with_name("gw.sock.handover")
        assert stat.S_IMODE(beside.stat().st_mode) == 0o600
        workers = gateway.workers()
        assert gateway.stop() == 0
        assert all(map(gone, workers))
        assert not gateway.control.exists()
        assert not beside.exists()
        with pytest.raises(ConnectionRefusedError):
            get()


@in_fresh_netns
def test_a_worker_that_is_killed_comes_back(tmp_path: Path) -> None:
    """Nobody is refused meanwhile, what it had counted stays counted, its slot is free again; what
    has become of the file of a certificate is no matter."""
    chain, key = write_certificate(tmp_path, "a.test")
    trusting = ssl.create_default_context(cafile=str(chain))
    secure = config_text(1, PORT + 1).partition("[[listener]]")[2].replace("web", "secure")
    tls = f'[listener.tls]\ncertificate = "{chain}"\nkey = "{key}"\n'
    with backend() as server, gateways(tmp_path) as (gateway,):
        plain = config_text(workers=1, more=METRICS)
        gateway.config.write_text(f"{plain}[[listener]]{secure}{tls}")
        gateway.start()
        chain.write_text("garbage")
        key.unlink()
        assert get() == b"hi\n"
        with Stream("/hold") as stream:
            stream.until(b"first")
            gateway.wait(lambda: 'connections_total{listener="web"} 2.0' in page(), "it is counted")
            assert gateway.ask("backends")[0]["in_flight"] == 1
            (pid,) = gateway.workers()
            os.kill(pid, signal.SIGSTOP)
            with Clients(2) as clients:
                gateway.wait(lambda: clients._threads[0].is_alive(), "clients")
                os.kill(pid, signal.SIGKILL)
                clients.some_more()
            assert not clients.errors
        server.go_on.set()
        (died,) = gateway.events("worker_died")
        assert (died["pid"], died["signal"]) == (pid, signal.SIGKILL)
        (new,) = gateway.workers()
        assert new != pid
        assert gateway.ask("backends")[0]["in_flight"] == 0
        accepted = 2 + clients.good
        gateway.wait(
            lambda: f'connections_total{{listener="web"}} {accepted}.0' in page(), "all counted"
        )
        assert "worker_deaths_total 1.0" in page()
        with socket.create_connection((ADDRESS, PORT + 1), 20) as sock:
            trusting.wrap_socket(sock, server_hostname="a.test").close()
        with pytest.raises(CommandError, match=f"tls.key: {key} cannot be read"):
            gateway.ask("reload")
        assert gateway.stop() == 0


@in_fresh_netns
def test_reload(tmp_path: Path) -> None:
    """Another configuration: nobody is refused, a stream goes on with the workers that have it,
    a listener comes and goes. One that cannot be used changes nothing. What workers decided is
    known when they have ended."""
    with backend() as server, gateways(tmp_path) as (gateway,):
        gateway.config.write_text(config_text(workers=2))
        gateway.start()
        former = gateway.workers()
        for _ in range(6):
            assert get() == b"hi\n"
        early = gateway.ask("decisions")
        assert len(early) == 6
        with Stream("/hold") as stream, Clients() as clients:
            stream.until(b"first")
            clients.some_more()
            second = config_text(1, PORT + 1).partition("[[listener]]")[2].replace("web", "two")
            gateway.config.write_text(config_text(workers=1) + f"[[listener]]{second}")
            assert gateway.ask("reload", dry_run=True)["applied"] is False
            assert gateway.workers("serving") == former
            gateway.signal(signal.SIGHUP)
            gateway.wait(lambda: gateway.events("reloaded"), "it is reloaded")
            assert get(port=PORT + 1) == b"hi\n"
            clients.some_more()
            (new,) = gateway.workers("serving")
            assert new not in former
            # The one that has the stream is there; the other one has ended, or is about to.
            assert set(gateway.workers("retiring")) <= set(former)

            good = gateway.config.read_text()
            for bad, words in (
                (good.replace('"http"', '"smtp"'), "smtp"),
                (f"{good}[listener.tls]\ncertificate = '/none'\nkey = '/none'\n", "/none"),
                (good.replace(f"{PORT + 1}", "9"), "Address already in use"),
                ("[gateway]\nworkers = 2\n", "at least one"),
            ):
                gateway.config.write_text(bad)
                with socket.create_server((ADDRESS, 9)), pytest.raises(CommandError, match=words):
                    gateway.ask("reload")
            assert gateway.workers("serving") == [new]
            clients.some_more()

            gateway.config.write_text(config_text(workers=3))
            answer = gateway.ask("reload")
            assert (answer["applied"], answer["generation"], answer["workers"]) == (True, 3, 3)
            assert len(gateway.workers("serving")) == 3
            clients.some_more()
            with pytest.raises(ConnectionRefusedError):
                gateway.wait(lambda: not get(port=PORT + 1), "the port is closed")
            server.go_on.set()
            assert stream.rest().endswith(b"0\r\n\r\n")
        assert not clients.errors
        gateway.wait(lambda: len(gateway.workers()) == 3, "the former ones have ended")
        known = gateway.ask("decisions", limit=100_000)
        assert len({each["id"] for each in known}) == len(known) >= 6 + 1 + 1 + clients.good
        for each in early:
            assert each in known
            assert gateway.ask("explain", request=each["id"]).items() >= each.items()
        gateway.config.write_text(config_text(workers=3, more="decisions_kept = 0"))
        for _ in range(50):
            gateway.signal(signal.SIGHUP)
            time.sleep(0.001)
        gateway.wait(lambda: len(gateway.events("reloaded")) > 2, "it is reloaded again")
        gateway.wait(lambda: len(gateway.workers()) == 3, "the former ones have ended")
        assert gateway.ask("decisions") == []
        assert gateway.ask("status")["generation"] < 8
        assert gateway.stop() == 0


@in_fresh_netns
def test_hitless_restart(tmp_path: Path) -> None:
    """A second gateway takes the sockets over while clients connect all the time; the first one
    finishes its stream and ends. One that fails to start leaves everything as it was. What the
    first one has counted and decided, the second one knows. That one starts a third one itself."""
    names = ("first", "bad", "second")
    with backend() as server, gateways(tmp_path, *names) as (first, bad, second):
        first.config.write_text(config_text(more=METRICS))
        first.start()
        with Stream("/hold") as stream, Clients() as clients:
            stream.until(b"first")
            clients.some_more()

            bad.config = tmp_path / "bad.toml"
            bad.config.write_text(config_text(more=METRICS) + "[listener.tls]\n")
            with socket.create_server((ADDRESS, 9)):
                bad.config.write_text(config_text(more=f'metrics = "{ADDRESS}:9"'))
                bad.begin()
                assert bad.ended() == 1
            assert "metrics cannot be served" in bad.log()
            first.wait(lambda: first.events("handover_failed"), "it has noticed")
            assert first.ask("status")["state"] == "serving"
            clients.some_more()

            gets = clients.good
            first.wait(lambda: total("requests_total") >= gets, "they are counted")
            early, before = first.ask("decisions", limit=1)[0], counters()
            first.signal(signal.SIGHUP)  # while it is asked to hand over, maybe
            second.start()
            first.wait(lambda: first.events("handed_over"), "it has handed over")
            after = counters()
            assert all(after[name] >= value for name, value in before.items())
            assert second.events("taken_over")[0]["former"] == first.pid
            clients.some_more()
            assert second.ask("status")["pid"] == second.pid
            assert 'workers{state="serving"} 2.0' in page()
            # What the former one's worker has is seen by all.
            assert second.ask("backends")[0]["in_flight"] >= 1
            assert first.runs
            server.go_on.set()
            assert stream.rest().endswith(b"0\r\n\r\n")
            assert first.ended() == 0
            clients.some_more()
            before = counters()
            third = _upgraded(second)
            assert second.ended() == 0
            clients.some_more()
            assert second.wait_for_another() == third
            after = counters()
            assert all(after[name] >= value for name, value in before.items())
        assert not clients.errors
        # No more and no less: also those that the first one answered after it had handed over.
        gets = clients.good + 1
        wait_for(lambda: total("requests_total") >= gets, DEADLINE_S, "all are counted")
        assert total("requests_total") == total("ttfb_seconds_count") == gets
        assert len(second.ask("decisions", limit=100_000)) == gets
        assert second.ask("explain", request=early["id"]).items() >= early.items()
        assert second.control.exists()
        os.kill(third, signal.SIGTERM)
        wait_for(lambda: not second.control.exists(), DEADLINE_S, "the third one has ended")


def _upgraded(gateway: GatewayProcess) -> int:
    """Process id of the successor that it has started. One at a time; one that fails is nothing."""
    good = gateway.config.read_text()
    gateway.config.write_text("garbage")
    with pytest.raises(CommandError, match=r"failed: .*gateway.toml:1: not valid TOML"):
        gateway.ask("upgrade")
    gateway.config.write_text(good)
    assert gateway.ask("status")["state"] == "serving"
    refused: list[str] = []

    def too_much() -> None:
        gateway.wait(lambda: len(gateway.events("successor_started")) == 2, "one is started")
        for command in ("upgrade", "reload"):
            try:
                gateway.ask(command)
            except CommandError as error:
                refused.append(str(error))

    other = threading.Thread(target=too_much)
    other.start()
    answer = gateway.ask("upgrade")
    other.join()
    assert ["is under way" in each or "about to take over" in each for each in refused] == [
        *(True, True)
    ]
    assert (answer["former"], answer["version"]) == (gateway.pid, __version__)
    assert answer["pid"] != gateway.pid
    return int(answer["pid"])


@in_fresh_netns
def test_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    """Its workers take nothing more and finish what they have; another gateway starts at once."""
    with backend() as server, gateways(tmp_path, "first", "second") as (first, second):
        first.config.write_text(config_text())
        first.start()
        workers = first.workers()
        with Stream("/hold") as stream:
            stream.until(b"first")
            first.signal(signal.SIGKILL)
            first.ended()
            second.start()
            assert get() == b"hi\n"
            server.go_on.set()
            assert stream.rest().endswith(b"0\r\n\r\n")
        second.wait(lambda: all(map(gone, workers)), "the former workers have ended")
        assert second.stop() == 0


@in_fresh_netns
def test_it_drains_when_it_is_told_to_stop(tmp_path: Path) -> None:
    """SIGTERM: nothing new is taken, a stream is finished, then it ends."""
    with backend() as server, gateways(tmp_path) as (gateway,):
        gateway.config.write_text(config_text())
        gateway.start()
        with Stream("/hold") as stream:
            stream.until(b"first")
            for pid in gateway.workers():  # as systemd does, and a terminal
                os.kill(pid, signal.SIGTERM)
            gateway.signal(signal.SIGHUP)  # what is begun is given up, or is done
            gateway.ask("drain")
            gateway.wait(lambda: _refused(), "nobody listens")
            assert gateway.ask("status")["state"] == "draining"
            with pytest.raises(CommandError, match="draining"):
                gateway.ask("reload")
            server.go_on.set()
            assert stream.rest().endswith(b"0\r\n\r\n")
        assert gateway.ended() == 0


@in_fresh_netns
def test_its_time_to_drain_is_limited(tmp_path: Path) -> None:
    """A stream that goes on and on ends at drain_timeout; a second signal ends it at once."""
    with backend(), gateways(tmp_path) as (gateway,):
        for drain, number in (("300ms", 0), ("1h", signal.SIGINT)):
            gateway.config.write_text(config_text(workers=1, drain=drain))
            gateway.start()
            with Stream("/hold") as stream:
                stream.until(b"first")
                gateway.signal(signal.SIGTERM)
                gateway.wait(lambda: _refused(), "nobody listens")
                if number:
                    gateway.signal(number)
                assert gateway.ended() == 0
                with pytest.raises(ConnectionError):
                    stream.until(b"last")
        assert gateway.events("streams_cut")


def _refused() -> bool:
    try:
        socket.create_connection((ADDRESS, PORT), 5).close()
    except ConnectionRefusedError:
        return True
    return False


@in_fresh_netns
def test_a_foreign_process_on_the_address(tmp_path: Path) -> None:
    """It is an error, although the kernel would let both be; nothing is left behind."""
    with backend(), gateways(tmp_path) as (gateway,), contextlib.closing(socket.socket()) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((ADDRESS, PORT))
        sock.listen()
        gateway.config.write_text(config_text())
        gateway.begin()
        assert gateway.ended() == 1
        assert f"listener 'web': cannot listen on {ADDRESS}:{PORT}" in gateway.log()
        assert "Traceback" not in gateway.log()
        assert not gateway.control.exists()


@in_fresh_netns
def test_who_may_give_orders(tmp_path: Path) -> None:
    """A member of the control group may look, but neither reload nor drain nor take over."""
    with backend(), gateways(tmp_path) as (gateway,):
        tmp_path.chmod(0o755)
        for each in tmp_path.parents:
            if os.stat(each).st_uid == os.geteuid() and "pytest" in str(each):
                each.chmod(0o755)
        gateway.config.write_text(config_text(workers=1))
        gateway.start("--control-group", "65534")
        beside = str(gateway.control.with_name("gw.sock.handover"))
        outcome = _as_nobody(gateway, beside)
        assert outcome["status"] == "serving"
        assert "root" in outcome["reload"]
        assert "root" in outcome["drain"]
        assert "Permission denied" in outcome["handover"]
        assert gateway.ask("status")["generation"] == 1
        assert gateway.stop() == 0


def _as_nobody(gateway: GatewayProcess, beside: str) -> dict[str, str]:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:  # nothing but this may happen in the copy
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            lines = [gateway.ask("status")["state"]]
            for command in ("reload", "drain"):
                try:
                    lines.append(str(gateway.ask(command)))
                except CommandError as error:
                    lines.append(str(error))
            try:
                socket.socket(socket.AF_UNIX).connect(beside)
                lines.append("connected")
            except OSError as error:
                lines.append(str(error))
            os.write(write, "\n".join(lines).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(pid, 0)
    return dict(zip(("status", "reload", "drain", "handover"), text.split("\n"), strict=True))
