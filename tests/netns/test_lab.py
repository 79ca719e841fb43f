# SPDX-License-Identifier: Apache-2.0
"""The lab's topology, its servers, and what can be done to them."""

from __future__ import annotations

import errno
import select
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.support.netns import LabFactory, mounts_under, unique_prefix, wait_for
from xdp_router.lab import BackendSpec, Lab, LabError, LabSpec, links, processes

pytest_plugins = ("tests.support.netns",)

THREE = LabSpec(tuple(BackendSpec(f"b{i}") for i in (1, 2, 3)))
TEN_MB = 10_000_000


def who(lab: Lab, index: int, timeout: float = 3.0) -> str:
    """The name that the server behind a backend's own address gives."""
    with lab.client.connect(lab.addresses.backends[index], timeout=timeout) as peer:
        peer.sendall(b"WHO\n")
        return peer.makefile("rb").readline().decode().strip()


def echo(peer: socket.socket, payload: bytes) -> bytes:
    """Send the payload and a FIN, and read to the end."""

    def send() -> None:
        peer.sendall(payload)
        peer.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    received = bytearray()
    while data := peer.recv(1 << 20):
        received += data
    sender.join()
    return bytes(received)


def test_client_reaches_every_backend_through_the_router(make_lab: LabFactory) -> None:
    """Each backend answers at its own address, by plain kernel forwarding, with its own name."""
    lab = make_lab(THREE)
    assert [who(lab, index) for index in range(3)] == ["b1", "b2", "b3"]


def test_router_has_the_documented_interfaces(make_lab: LabFactory) -> None:
    """Interface names and MACs in the router are fixed, so that configurations can name them."""
    lab = make_lab(THREE)
    found = links.with_netlink(
        lab.router,
        lambda netlink: {
            link.get_attr("IFLA_IFNAME"): link.get_attr("IFLA_ADDRESS")
            for link in netlink.get_links()
        },
    )
    found.pop("lo")
    assert found == {
        "client0": "02:58:52:00:00:01",
        "be1": "02:58:52:01:01:01",
        "be2": "02:58:52:01:02:01",
        "be3": "02:58:52:01:03:01",
    }
    assert lab.router_interfaces == ("client0", "be1", "be2", "be3")


def test_service_address_is_the_routers_to_handle(make_lab: LabFactory) -> None:
    """Without an XDP router nobody has the service address: the router says unreachable."""
    lab = make_lab(THREE)
    with pytest.raises(OSError, match=r"unreachable|No route") as refused:
        lab.client.connect(lab.addresses.service, timeout=3)
    assert refused.value.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH)


def test_client_can_have_many_addresses(make_lab: LabFactory) -> None:
    """Further client addresses can be connected from."""
    lab = make_lab(LabSpec((BackendSpec("b1"),), client_addresses=5))
    for address in lab.addresses.clients:
        with lab.client.connect(lab.addresses.backends[0], source=(address, 0)) as peer:
            assert peer.getsockname()[0] == address


def test_ten_megabytes_come_back_unchanged(make_lab: LabFactory) -> None:
    """A 10 MB echo survives forwarding, and the server's FIN follows the client's."""
    lab = make_lab(THREE)
    payload = bytes(range(256)) * (TEN_MB // 256)
    with lab.client.connect(lab.addresses.backends[0], timeout=20) as peer:
        assert echo(peer, payload) == payload


def test_many_clients_at_once(make_lab: LabFactory) -> None:
    """100 connections that are open together are all served."""
    lab = make_lab(THREE)
    peers = [lab.client.connect(lab.addresses.backends[0]) for _ in range(100)]
    for number, peer in enumerate(peers):
        peer.sendall(b"client %d\n" % number)
    for number, peer in enumerate(peers):
        with peer:
            assert peer.makefile("rb").readline() == b"client %d\n" % number


def test_killed_backend_refuses_and_can_be_started_again(make_lab: LabFactory) -> None:
    """After SIGKILL open connections are reset, new ones refused, until the server is back."""
    lab = make_lab(THREE)
    peer = lab.client.connect(lab.addresses.backends[1])
    peer.sendall(b"accepted\n")
    assert peer.recv(100) == b"accepted\n"
    lab.kill_backend("b2")
    assert lab.backend_pid(1) is None
    with peer:
        assert peer.recv(1) == b""  # its kernel closes for it, by FIN ...
        with pytest.raises(BrokenPipeError):  # ... and answers what still comes by RST
            wait_for(lambda: peer.send(b"x") == 0, message="a reset")
    with pytest.raises(ConnectionRefusedError):
        lab.client.connect(lab.addresses.backends[1])
    lab.start_backend("b2")
    assert who(lab, 1) == "b2"


@pytest.mark.parametrize("delay_line", [False, True], ids=["direct", "delay line"])
def test_down_backend_says_nothing(make_lab: LabFactory, delay_line: bool) -> None:
    """With its link down a backend sends no RST; up again it serves."""
    lab = make_lab(LabSpec((BackendSpec("b1", delay_line=delay_line),)))
    assert who(lab, 0) == "b1"
    lab.down_backend(0)
    with pytest.raises(OSError) as failure:  # noqa: PT011 - timed out, or the router's ICMP
        lab.client.connect(lab.addresses.backends[0], timeout=0.3)
    assert not isinstance(failure.value, ConnectionError)
    lab.up_backend(0)
    assert who(lab, 0, timeout=5) == "b1"


def test_silent_backend_keeps_its_carrier(make_lab: LabFactory) -> None:
    """A silenced backend answers nothing at all while the router's link stays up."""
    lab = make_lab(THREE)
    lab.silence_backend(0)
    with pytest.raises(TimeoutError):
        lab.client.connect(lab.addresses.backends[0], timeout=0.3)
    carrier = links.with_netlink(
        lab.router, lambda netlink: netlink.link("get", ifname="be1")[0].get_attr("IFLA_CARRIER")
    )
    assert carrier == 1
    lab.unsilence_backend(0)
    assert who(lab, 0, timeout=5) == "b1"


def test_paused_backend_still_accepts(make_lab: LabFactory) -> None:
    """A stopped server's kernel completes the handshake; the answer comes when it resumes."""
    lab = make_lab(THREE)
    lab.pause_backend(0)
    with lab.client.connect(lab.addresses.backends[0]) as peer:
        peer.sendall(b"WHO\n")
        assert not select.select([peer], [], [], 0.2)[0]
        lab.resume_backend(0)
        assert peer.recv(100) == b"b1\n"


def test_unusable_backend_is_explained(make_lab: LabFactory) -> None:
    """A server that can't start is an error that quotes it; wrong references name the choices."""
    lab = make_lab(THREE)
    with pytest.raises(LabError, match="b1 runs already"):
        lab.start_backend(0)
    lab.kill_backend(0)
    with pytest.raises(LabError, match="b1 does not run"):
        lab.kill_backend(0)
    with lab.backends[0].socket() as taken:
        taken.bind(("0.0.0.0", 8080))
        taken.listen()
        with pytest.raises(LabError, match=r"(?s)backend-b1 ended at once.*in use"):
            lab.start_backend(0)
    with pytest.raises(LabError, match="it has b1, b2, b3"):
        lab.kill_backend("b9")


def test_idle_lab_is_quiet(make_lab: LabFactory) -> None:
    """Nothing is on the wires that nobody sent: no IPv6, no router or neighbour solicitations."""
    lab = make_lab(LabSpec((BackendSpec("b1", delay_line=True),)))
    with lab.router.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as tap:
        assert not select.select([tap], [], [], 1.0)[0]


def test_two_labs_do_not_see_each_other(make_lab: LabFactory) -> None:
    """Labs with the same addresses run side by side, each with its own servers."""
    first = make_lab(LabSpec((BackendSpec("left"),)))
    second = make_lab(LabSpec((BackendSpec("right"),)))
    assert (who(first, 0), who(second, 0)) == ("left", "right")
    first.kill_backend(0)
    assert who(second, 0) == "right"


def test_close_leaves_nothing(make_lab: LabFactory) -> None:
    """After close there is no process and no directory, and close can be repeated."""
    lab = make_lab(LabSpec((BackendSpec("b1", delay_line=True),)))
    sleeper = lab.router.spawn(["sleep", "1000"])
    assert len(processes.marked(lab.directory)) == 3
    lab.close()
    assert sleeper.poll() is not None
    assert not processes.marked(lab.directory)
    assert not lab.directory.exists()
    lab.close()


def test_lab_dies_with_a_killed_builder(private_mounts: Path) -> None:
    """SIGKILL of the process that built a lab ends all processes of the lab."""
    directory = private_mounts / unique_prefix()
    script = (
        "import sys, pathlib, time\n"
        "from xdp_router.lab import *\n"
        "spec = LabSpec((BackendSpec('b1', delay_line=True), BackendSpec('b2')))\n"
        "with Lab(spec, directory=pathlib.Path(sys.argv[1])) as lab:\n"
        "    lab.router.spawn(['sleep', '1000'])\n"
        "    print('up', flush=True)\n"
        "    time.sleep(1000)\n"
    )
    builder = subprocess.Popen(
        [sys.executable, "-c", script, str(directory)], stdout=subprocess.PIPE
    )
    with builder:
        assert builder.stdout is not None
        assert builder.stdout.readline() == b"up\n"
        assert len(processes.marked(directory)) == 4
        builder.kill()
    wait_for(lambda: not processes.marked(directory), message="the lab's processes end")


def test_building_is_quick(make_lab: LabFactory) -> None:
    """A lab of three backends stands within seconds; tests build many."""
    started = time.monotonic()
    make_lab(THREE)
    assert time.monotonic() - started < 5


def test_bpffs_is_private_and_empty(bpffs: Path) -> None:
    """Each test that wants one has its own, empty bpffs, which goes with the test."""
    assert mounts_under(bpffs) == [str(bpffs)]
    assert not [entry for entry in bpffs.iterdir() if entry.suffix != ".debug"]
