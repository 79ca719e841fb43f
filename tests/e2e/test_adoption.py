# SPDX-License-Identifier: Apache-2.0
"""A successor takes over what a daemon has left: no connection notices."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.support.clients import connect, digest, random_bytes, receive, who, who_answers
from tests.support.netns import wait_for
from tests.support.router import Router, calm_config
from tests.support.stopped_router import SPEC, reserved_ports
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters.dataplane import find_instances
from xdp_router.adapters.pins import pinned_links

pytest_plugins = ("tests.support.netns", "tests.support.stopped_router")

NAMES = ("b1", "b2")
SPEC_INTERFACES = ("client0", "be1", "be2")
STALE = 'heartbeat_stale = "300ms"'
ROUNDS = 6
CHUNK = 50_000
LOSSES = ("no_path", "tail_call_missed", "orphan_reset", "orphan_dropped", "refused_no_backend")


def link_ids(router: Router) -> dict[str, tuple[int, int]]:
    """(link id, program id) of each pinned attachment."""
    (found,) = find_instances(router.pins)
    ids = {}
    for name, pin in pinned_links(found.path).items():
        fd = bpf.open_pinned(str(pin))
        info = bpf.link_info(fd)
        os.close(fd)
        assert info.ifindex, f"{name} is detached"
        ids[name] = (info.id, info.prog_id)
    return ids


def descriptors(router: Router) -> list[str]:
    """What the daemon has open, by kind."""
    found = []
    for each in Path(f"/proc/{router.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since
            found.append(os.readlink(each).removeprefix("anon_inode:").replace("_", "-"))
    return found


class Watch:
    """Looks all the time whether each interface has a program."""

    def __init__(self, router: Router) -> None:
        self._stop = threading.Event()
        self.looks = 0
        self.gaps: list[str] = []
        indexes = {name: link.ifindex for name, link in router.links().items()}
        self._thread = threading.Thread(
            target=lambda: router.lab.router.run(lambda: self._look(indexes))
        )

    def _look(self, indexes: dict[str, int]) -> None:
        while not self._stop.is_set():
            for name, ifindex in indexes.items():
                self.looks += 1
                if not bpf.xdp_query(ifindex).prog_id:
                    self.gaps.append(name)
            time.sleep(0.002)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._thread.join()


class Clients:
    """A stream that sends and compares for ever, and new connections one after the other."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._stop = threading.Event()
        self.stream = connect(router, timeout=20)
        self.backend = who(self.stream)
        self.echoed = 0
        self.connected = 0
        self.faults: list[str] = []
        self._threads = [threading.Thread(target=each) for each in (self._talk, self._connect)]

    def _talk(self) -> None:
        try:
            while not self._stop.is_set():
                payload = random_bytes(CHUNK, self.echoed)
                self.stream.sendall(payload)
                if digest(receive(self.stream, CHUNK)) != digest(payload):
                    self.faults.append(f"stream: other bytes after {self.echoed}")
                    return
                self.echoed += CHUNK
                time.sleep(0.002)
        except OSError as error:
            self.faults.append(f"stream: {error!r} after {self.echoed}")

    def _connect(self) -> None:
        while not self._stop.is_set():
            try:
                if who_answers(self._router, timeout=10) in NAMES:
                    self.connected += 1
            except (OSError, AssertionError) as error:
                self.faults.append(f"connection {self.connected}: {error!r}")
            time.sleep(0.01)

    def wait_for_more(self) -> None:
        """Return when the stream has got on, and a connection was made, since here."""
        sent, new = self.echoed, self.connected
        wait_for(lambda: self.echoed > sent and self.connected > new + 1, 10, "traffic")

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self.stream.close()


def test_successors_that_no_connection_notices(router: Router) -> None:
    """By SIGKILL and by SIGTERM with --persist, by the other loader each time.

    The stream's bytes are compared, new connections succeed throughout, the attachment is the
    same one with another program, and ``flows`` shows the old flow at once.
    """
    config = calm_config(SPEC, STALE, fallback="b2")
    router.start(config, "--persist", "--loader", "object")
    before = link_ids(router)
    with Clients(router) as clients, Watch(router) as watch:
        for number in range(ROUNDS):
            kill = number % 2
            code = router.stop(signal.SIGKILL if kill else signal.SIGTERM)
            assert code == (-signal.SIGKILL if kill else 0)
            assert not clients.faults, clients.faults
            clients.wait_for_more()
            router.start(config, "--persist", "--loader", ("bcc", "object")[number % 2])
            flow = router.flow(clients.stream.getsockname())
            assert flow is not None
            assert (flow["backend"], flow["state"]) == (clients.backend, "established")
            assert flow["decision"]["mode"] == "race"
            (line,) = router.events("adopted")
            assert sorted(line["interfaces"]) == sorted(router.lab.router_interfaces)
            now = link_ids(router)
            assert {name: link for name, (link, _) in now.items()} == {
                name: link for name, (link, _) in before.items()
            }
            assert not {prog for _, prog in now.values()} & {prog for _, prog in before.values()}
            before = now
            clients.wait_for_more()
        assert not clients.faults, clients.faults
        counters = router.counters()
        assert {name: counters[name] for name in LOSSES} == dict.fromkeys(LOSSES, 0)
    assert not watch.gaps
    assert watch.looks > 500

    def raced() -> bool:
        with connect(router) as peer:
            who(peer)
            flow = router.flow(peer.getsockname())
        return flow is not None and flow["decision"]["mode"] == "race"

    wait_for(raced, 5, "the last successor decides")


def test_persist_leaves_everything_and_detach_takes_it(router: Router) -> None:
    """SIGTERM with --persist: exit code 0, ports stay reserved, XDP decides at once by itself."""
    reserved = reserved_ports(router)
    router.start(calm_config(SPEC, 'heartbeat_stale = "30s"', fallback="b2"), "--persist")
    assert router.stop() == 0
    assert not router.control.exists()
    begun = time.monotonic()
    assert who_answers(router) == "b2"
    assert time.monotonic() - begun < 0.9, "it took a retransmit"
    assert "leaving_attached" in [line["event"] for line in router.events()]
    done = router.routerd("detach", "client0")
    assert done.returncode == 0, done.stderr
    assert not router.left_behind()
    assert reserved_ports(router) == reserved


@pytest.mark.parametrize("mode", ["native", "generic"])
def test_without_persist_the_successor_takes_all_away(router: Router, mode: str) -> None:
    """An adopted data plane is detached, and reserved ports are given back, as one's own."""
    reserved = reserved_ports(router)
    router.start(None, "--xdp-mode", mode)
    with connect(router) as peer:
        who(peer)
        router.stop(signal.SIGKILL)
        router.start()
        assert {each["mode"] for each in router.ask("status")["interfaces"]} == {mode}
        peer.sendall(b"still there")
        assert receive(peer, 11) == b"still there"
        assert who_answers(router) in NAMES
    assert router.stop() == 0
    assert not router.left_behind()
    assert reserved_ports(router) == reserved


def test_a_backend_that_is_configured_no_more_keeps_its_flows(router: Router) -> None:
    """Others keep their ids in another order; the vanished one gets no new flow."""
    text = calm_config(SPEC, STALE).replace('fallback = "b1"\n', "")
    router.start(text, "--persist")
    peers = {}
    for port in range(44_000, 44_100):
        peer = connect(router, source=(router.lab.addresses.client, port))
        name = who(peer)
        if name in peers:
            peer.close()
        else:
            peers[name] = peer
        if len(peers) == 2:
            break
    assert set(peers) == set(NAMES)
    router.stop()
    head, first, second = text.split("[[service.backend]]")
    gone = "b1" if '"b1"' in first else "b2"
    kept = "b2" if gone == "b1" else "b1"
    router.start("[[service.backend]]".join((head, second)), "--persist")
    assert router.events("adopted")[0]["draining"] == [gone]
    for _ in range(2):
        for name, peer in peers.items():
            flow = router.flow(peer.getsockname())
            assert flow is not None
            assert flow["backend"] == name
            peer.sendall(b"still there")
            assert receive(peer, 11) == b"still there"
        assert {who_answers(router) for _ in range(5)} == {kept}
        router.stop(signal.SIGKILL)
        router.start("[[service.backend]]".join((head, second)), "--persist")
    router.stop()
    router.start("[[service.backend]]".join((head, second, first)), "--persist")
    assert router.events("adopted")[0]["draining"] == []
    flow = router.flow(peers[gone].getsockname())
    assert flow is not None
    assert flow["backend"] == gone
    for peer in peers.values():
        peer.close()


def test_a_start_that_fails_cuts_nothing(router: Router) -> None:
    """The successor is refused or stopped: the data plane that it found goes on."""
    router.start(calm_config(SPEC, STALE, fallback="b2"), "--persist")
    with connect(router) as peer:
        who(peer)
        router.stop()
        done = router.attach_in_vain(["client0", "be1"], "--config", str(router.config))
        assert done.returncode == 1
        assert "attach client0 be1 be2, all of them" in done.stderr
        wrong = ("--config", str(router.config), "--xdp-mode", "generic")
        done = router.attach_in_vain(SPEC_INTERFACES, *wrong)
        assert "is attached in native mode: take it over with --xdp-mode auto" in done.stderr
        (found,) = find_instances(router.pins)
        (found.path / "somebodys").mkdir()
        good = ("--config", str(router.config))
        done = router.attach_in_vain(SPEC_INTERFACES, *good)
        assert f"{found.path}/somebodys: not a pin of this version" in done.stderr
        (found.path / "somebodys").rmdir()
        other = router.pins / "v9" / "be1"
        other.mkdir(parents=True)
        done = router.attach_in_vain(SPEC_INTERFACES, *good)
        assert f"{other}: a data plane of another version (ABI 9" in done.stderr
        other.rmdir()
        other.parent.rmdir()
        peer.sendall(b"still there")
        assert receive(peer, 11) == b"still there"
        router.start(None, interfaces=("be2", "client0", "be1"))
        peer.sendall(b"still there")
        assert receive(peer, 11) == b"still there"


def test_a_frozen_daemon_that_wakes_up_leaves_the_adopted_data_plane_alone(
    router: Router, tmp_path: Path
) -> None:
    """It shared maps and attachments with its successor: it ends, and nothing else changes."""
    router.start(calm_config(SPEC))
    old = router._process
    assert old is not None
    with connect(router) as peer:
        who(peer)
        os.kill(old.pid, signal.SIGSTOP)
        time.sleep(1.2)
        successor = Router(router.lab, tmp_path, router.pins.parent)
        successor.pins = router.pins
        try:
            successor.start(calm_config(SPEC))
            links = link_ids(successor)
            os.kill(old.pid, signal.SIGCONT)
            for _ in range(20):
                with connect(successor) as new:
                    assert who(new) in NAMES
                    flow = successor.flow(new.getsockname())
                assert flow is not None
                assert flow["decision"]["mode"] == "race"
            assert old.wait(5) == 1
            assert link_ids(successor) == links
            peer.sendall(b"still there")
            assert receive(peer, 11) == b"still there"
            assert successor.ask("status")["engine"]["decided_race"] >= 20
        finally:
            old.send_signal(signal.SIGCONT)
            successor.close()


def test_killed_while_taking_over(router: Router) -> None:
    """At whatever moment: the stream goes on, and the next attach takes over, or detach ends it."""
    config = calm_config(SPEC, STALE, fallback="b2")
    router.start(config, "--persist")
    argv = router._attach_argv(SPEC_INTERFACES, "--persist", "--config", str(router.config))
    with Clients(router) as clients, Watch(router) as watch:
        router.stop()
        for number in range(12):
            # Over the 0.5 s or so from start to ready.
            attaching = router.lab.router.spawn(
                argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            time.sleep(0.2 + 0.04 * number)
            attaching.kill()
            attaching.wait()
            assert not clients.faults, clients.faults
        clients.wait_for_more()
        router.start(config, "--persist")
        clients.wait_for_more()
        assert not clients.faults, clients.faults
        flow = router.flow(clients.stream.getsockname())
        assert flow is not None
        assert flow["backend"] == clients.backend
    assert not watch.gaps
    (place,) = router.pins.glob("v*")
    assert [each.name for each in place.iterdir()] == ["+".join(SPEC_INTERFACES)]


def rivals(router: Router, directory: Path, loader: str) -> list[subprocess.Popen[bytes]]:
    """Two attaches that are started at once, with control sockets of their own."""
    started = []
    for name in ("one", "two"):
        argv = router._attach_argv(SPEC_INTERFACES, "--persist", "--loader", loader)
        argv[argv.index("--control") + 1] = str(directory / name)
        argv += ["--config", str(router.config)]
        started.append(
            router.lab.router.spawn(
                argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, name=name
            )
        )
    return started


@pytest.mark.parametrize("loader", ["object", "bcc"])
def test_two_attaches_at_once(router: Router, tmp_path: Path, loader: str) -> None:
    """One of them takes over what was left; the other one is refused, and says by whom it is."""
    router.start(calm_config(SPEC, STALE, fallback="b2"), "--persist")
    with connect(router) as peer:
        who(peer)
        router.stop()
        for _ in range(3):
            both = rivals(router, tmp_path, loader)

            def ended(both: list[subprocess.Popen[bytes]] = both) -> list[subprocess.Popen[bytes]]:
                return [each for each in both if each.poll() is not None]

            try:
                wait_for(ended, 60, "one gives way")
                time.sleep(1)  # and only one: who was robbed would have noticed by now
                (loser,) = ended()
                assert loser.returncode == 1
                assert loser.stderr is not None
                told = loser.stderr.read().decode()
                assert "already has a data plane of a running daemon" in told
                peer.sendall(b"still there")
                assert receive(peer, 11) == b"still there"
            finally:
                for process in both:
                    process.terminate()
                    process.wait(10)
                    assert process.stderr is not None
                    process.stderr.close()


def test_nothing_of_the_former_daemon_is_held(router: Router) -> None:
    """Its programs go with it: a successor has as many open as whoever begins anew."""
    router.start(calm_config(SPEC), "--persist")
    kinds = ("bpf-prog", "bpf-map", "bpf-link")
    first = [descriptors(router).count(kind) for kind in kinds]
    assert first[0] > 10
    for number in (signal.SIGKILL, signal.SIGTERM):
        router.stop(number)
        router.start(calm_config(SPEC), "--persist")
        now = [descriptors(router).count(kind) for kind in kinds]
        assert now == first
