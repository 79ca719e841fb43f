# SPDX-License-Identifier: Apache-2.0
"""Interfaces that go, come back, change or move while connections run through them."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyroute2 import IPRoute

from tests.support.bpf_programs import trivial_program
from tests.support.clients import (
    connect,
    digest,
    random_bytes,
    receive,
    stream_to,
    who,
    who_answers,
)
from tests.support.netns import running_lab, wait_for
from tests.support.router import Router, calm_config, router_in
from xdp_router.adapters import xdp_link
from xdp_router.adapters.dataplane import find_instances
from xdp_router.adapters.host import link_info
from xdp_router.adapters.pins import pinned_links
from xdp_router.lab import BackendSpec, Lab, LabSpec
from xdp_router.lab.links import ifindex, with_netlink

pytest_plugins = ("tests.support.netns",)

SPEC = LabSpec((BackendSpec("b1"), BackendSpec("b2")))
NAMES = ("b1", "b2")


@pytest.fixture(params=["native", "generic"])
def mode(request: pytest.FixtureRequest) -> str:
    """The mode that ``attach`` is asked for."""
    return str(request.param)


@pytest.fixture
def router(mode: str, private_mounts: Path) -> Iterator[Router]:
    """A router of this test's own, in each mode."""
    with running_lab(SPEC) as lab, router_in(lab, private_mounts) as made:
        yield made.start(calm_config(SPEC), "--xdp-mode", mode)


def modes(router: Router) -> dict[str, str]:
    """The mode of each interface that is attached, as ``status`` tells."""
    interfaces = router.ask("status")["interfaces"]
    return {each["name"]: each["mode"] for each in interfaces if each["ready"]}


def reason(router: Router, backend: str) -> str | None:
    """Why a backend is down; None: it is up."""
    (row,) = (row for row in router.ask("backends") if row["name"] == backend)
    return None if row["up"] else row["reason"]


def is_up(router: Router, backend: str) -> Callable[[], bool]:
    return lambda: reason(router, backend) is None


def delete(lab: Lab, name: str) -> None:
    """Delete one of the router's interfaces; the other end goes with it."""
    with_netlink(lab.router, lambda netlink: netlink.link("del", index=_index(netlink, name)))


def _index(netlink: IPRoute, name: str) -> int:
    return int(netlink.link_lookup(ifname=name)[0])


def rewire(lab: Lab, name: str) -> None:
    """Lay the wire of an interface anew."""
    if name == "client0":
        lab.wiring.lay_client()
    else:
        lab.wiring.lay_backend(int(name.removeprefix("be")) - 1)


def move(lab: Lab, name: str, there: str, back: bool = False) -> None:
    """Move an interface to the first client's namespace under another name, or back."""
    source, target = (lab.client, lab.router) if back else (lab.router, lab.client)
    with_netlink(
        source,
        lambda netlink: netlink.link(
            "set",
            index=_index(netlink, there if back else name),
            net_ns_fd=target.fd,
            ifname=name if back else there,
        ),
    )


def configure(lab: Lab, name: str, address: str) -> None:
    """Give an interface that was moved its address again, and bring it up."""

    def body(netlink: Any) -> None:
        index = _index(netlink, name)
        netlink.addr("add", index=index, address=address, prefixlen=24)
        netlink.link("set", index=index, state="up")

    with_netlink(lab.router, body)


def pins_of_links(router: Router) -> set[str]:
    (instance,) = find_instances(router.pins)
    return set(pinned_links(instance.path))


def test_backend_side_deleted_and_made_anew(router: Router, mode: str) -> None:
    """Its backend is down with the reason, the rest goes on; back, the stream goes on, too."""
    lab = router.lab
    with stream_to(router, "b1") as peer:
        delete(lab, "be1")
        (gone,) = wait_for(lambda: router.events("interface_gone"), 5, "the log line")
        assert (gone["interface"], gone["reason"]) == ("be1", "it was deleted")
        assert "attached again when there is an interface be1" in gone["mend"]
        wait_for(lambda: "be1 is gone" in (reason(router, "b1") or ""), 5, "b1 is down")
        assert pins_of_links(router) == {"client0", "be2"}
        shown = {each["name"]: each for each in router.ask("status")["interfaces"]}
        assert (shown["be1"]["ready"], shown["be1"]["reason"]) == (False, "it was deleted")
        assert "be1: it was deleted" in router.cli("status").stdout
        doctor = json.loads(router.cli("doctor", "--json").stdout)
        assert ("interface_lost", "be1") in {
            (row["code"], row["subject"]) for row in doctor["findings"]
        }
        time.sleep(0.05)
        assert "be1 is gone" in (reason(router, "b1") or "")
        assert {who_answers(router) for _ in range(5)} == {"b2"}
        rewire(lab, "be1")
        wait_for(is_up(router, "b1"), 10, "b1 is up again")
        assert modes(router) == dict.fromkeys(lab.router_interfaces, mode)
        assert pins_of_links(router) == {"client0", "be1", "be2"}
        (back,) = router.events("interface_back")
        assert (back["interface"], back["mode"]) == ("be1", mode)
        payload = random_bytes(100_000)
        peer.sendall(payload)
        assert digest(receive(peer, len(payload))) == digest(payload)
    stream_to(router, "b1").close()
    assert router.stop() == 0
    assert not router.left_behind()


def test_client_side_made_anew_while_only_the_backend_speaks(router: Router) -> None:
    """The client is silent: nothing of it could tell the router where it is now."""
    lab = router.lab
    with connect(router, timeout=20) as peer, connect(router, timeout=20) as idle:
        who(peer), who(idle)
        payload = random_bytes(20_000_000)
        sender = threading.Thread(target=peer.sendall, args=(payload,))
        sender.start()
        received = receive(peer, 1_000_000)
        # From here on the client only reads: what was on its way comes from the backend.
        sender.join(0.2)
        rewire_client(lab)
        (line,) = wait_for(lambda: router.events("replies_led"), 10, "the log line")
        assert (line["flows"], line["failed"]) == (2, 0)
        received += receive(peer, len(payload) - len(received))
        sender.join()
        assert digest(received) == digest(payload)
        assert router.counters()["client_moved"] >= 2
        idle.sendall(b"still there")
        assert receive(idle, 11) == b"still there"


def rewire_client(lab: Lab) -> None:
    """Make the clients' wire anew; its ends have the MACs that they had."""
    delete(lab, "client0")
    rewire(lab, "client0")


def test_all_interfaces_deleted(router: Router) -> None:
    """The daemon stays; when all are back it serves as before."""
    lab = router.lab
    for name in lab.router_interfaces:
        delete(lab, name)
    wait_for(lambda: len(router.events("interface_gone")) == 3, 5, "all are gone")
    assert not any(each["ready"] for each in router.ask("status")["interfaces"])
    assert pins_of_links(router) == set()
    time.sleep(1.2)  # a second look at what is ours
    assert router.running
    for name in lab.router_interfaces:
        rewire(lab, name)
    wait_for(lambda: all(map(is_up_now(router), NAMES)), 10, "both are up")
    assert set(modes(router)) == set(lab.router_interfaces)
    assert who_answers(router) in NAMES
    flow_modes = {row["decision"]["mode"] for row in router.json("flows")}
    assert "race" in flow_modes
    assert router.stop() == 0
    assert not router.left_behind()


def is_up_now(router: Router) -> Callable[[str], bool]:
    return lambda name: reason(router, name) is None


def test_moved_to_another_namespace_and_back(router: Router) -> None:
    """Taken off there, where it would go on by numbers that mean others; attached when back."""
    lab = router.lab
    with stream_to(router, "b1") as peer:
        move(lab, "be1", "taken1")
        (gone,) = wait_for(lambda: router.events("interface_gone"), 5, "the log line")
        assert gone["reason"] == "it was moved to another network namespace"
        wait_for(lambda: not lab.client.run(lambda: link_info("taken1")).xdp_prog_id, 2)
        assert pins_of_links(router) == {"client0", "be2"}
        assert {who_answers(router) for _ in range(3)} == {"b2"}
        move(lab, "be1", "taken1", back=True)
        configure(lab, "be1", lab.addresses.backend_routers[0])
        wait_for(is_up(router, "b1"), 10, "b1 is up again")
        assert "be1" in modes(router)
        peer.sendall(b"still there")
        assert receive(peer, 11) == b"still there"


def test_renamed_flapped_and_changed(router: Router) -> None:
    """It stays attached; its new name, MAC and MTU are followed, and the stream goes on."""
    lab = router.lab
    program = router.links()["be1"].xdp_prog_id
    with stream_to(router, "b1") as peer:

        def change(netlink: Any) -> None:
            index = _index(netlink, "be1")
            netlink.link("set", index=index, mtu=1400)
            netlink.link("set", index=index, mtu=1500)
            netlink.link("set", index=index, state="down")
            netlink.link("set", index=index, ifname="wan1", address="02:58:52:99:99:99")
            netlink.link("set", index=index, state="up")

        with_netlink(lab.router, change)
        what = {"mtu", "down", "up", "renamed", "mac"}
        wait_for(lambda: what <= {e["what"] for e in router.events("interface_changed")}, 5)
        wait_for(is_up(router, "b1"), 10, "b1 is up again")
        assert lab.router.run(lambda: link_info("wan1")).xdp_prog_id == program
        assert "wan1" in modes(router)
        assert router.events("interface_gone") == []
        peer.sendall(b"still there")
        assert receive(peer, 11) == b"still there"
    stream_to(router, "b1").close()
    assert router.stop() == 0
    assert not lab.router.run(lambda: link_info("wan1")).xdp_prog_id


@pytest.mark.parametrize("mode", ["native"], indirect=True)  # nobody asks for ours in any other
def test_another_program_is_on_the_interface_that_came_back(router: Router) -> None:
    """Refused, told once with the mend, and attached as soon as the other program is gone."""
    lab = router.lab
    move(lab, "be1", "taken1")
    wait_for(lambda: router.events("interface_gone"), 5, "the log line")
    program = trivial_program("somebody_else")
    other = lab.client.run(
        lambda: xdp_link.attach(program, "taken1", link_info("taken1").ifindex, None)
    )
    try:
        move(lab, "be1", "taken1", back=True)
        configure(lab, "be1", lab.addresses.backend_routers[0])
        (line,) = wait_for(lambda: router.events("interface_not_attached"), 5, "the log line")
        assert "another XDP program is attached" in line["reason"]
        assert "somebody_else" in line["reason"]
        wait_for(lambda: "not attached" in (reason(router, "b1") or ""), 5, "b1 is down")
        assert "somebody_else" in router.cli("status").stdout
        assert {who_answers(router) for _ in range(3)} == {"b2"}
        assert len(router.events("interface_not_attached")) == 1
    finally:
        other.close()
        os.close(program)
    wait_for(lambda: router.events("interface_back"), 12, "attached")
    wait_for(is_up(router, "b1"), 10, "b1 is up again")
    stream_to(router, "b1").close()


def test_a_handshake_that_was_cut_by_it_is_completed(private_mounts: Path) -> None:
    """The SYN-ACK went to an interface that is no more: the SYN's retransmit leads it here."""
    spec = LabSpec((BackendSpec("b1", delay_ns=300_000_000),))
    config = calm_config(spec, deadline="2s")
    with running_lab(spec) as lab, router_in(lab, private_mounts) as router:
        router.start(config)
        before = ifindex(lab.router, "client0")
        with lab.client.socket() as client:
            client.setblocking(False)
            with pytest.raises(BlockingIOError):
                client.connect(router.service)
            wait_for(lambda: router.ask("status")["decisions_total"], 2, "the race is decided")
            rewire_client(lab)  # the SYN-ACK is on its way, for 300 ms
            assert ifindex(lab.router, "client0") != before
            client.settimeout(8)
            assert who(client) == "b1"
        assert router.counters()["client_moved"] == 1


def test_made_anew_while_there_was_no_daemon(router: Router, mode: str) -> None:
    """The next attach takes over, attaches where nothing is attached, and leads the replies."""
    lab = router.lab
    with connect(router, timeout=20) as peer:
        who(peer)
        router.stop(signal.SIGKILL)
        payload = random_bytes(400_000)
        peer.sendall(payload)  # its echo is on the way, or in the backend
        rewire_client(lab)
        router.start(calm_config(SPEC), "--xdp-mode", mode)
        (line,) = wait_for(lambda: router.events("replies_led"), 5, "the log line")
        assert (line["interface"], line["flows"]) == ("client0", 1)
        assert digest(receive(peer, len(payload))) == digest(payload)
    assert who_answers(router) in NAMES
    assert router.stop() == 0
    assert not router.left_behind()
