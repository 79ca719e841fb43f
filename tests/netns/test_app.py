# SPDX-License-Identifier: Apache-2.0
"""The daemon's lifetime, in this process: what is acquired, and that all of it is let go."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyroute2 import IPRoute

from tests.support.bpf_programs import trivial_program
from tests.support.fresh_netns import Wire, in_fresh_netns, make_wire
from xdp_router.adapters import sysctl, xdp_link
from xdp_router.adapters.control import ControlError, ControlInUse
from xdp_router.adapters.control_client import ControlClient
from xdp_router.adapters.dataplane import InstanceExists, find_instances, pinned_links
from xdp_router.adapters.host import link_info
from xdp_router.adapters.netlink import BackendRouteError
from xdp_router.core.config import RouterConfig, Settings, config_from_flags
from xdp_router.core.errors import XdpRouterError
from xdp_router.daemon.app import Router
from xdp_router.daemon.attach_options import AttachOptions
from xdp_router.linux.ethtool import Offload, set_offload

pytest_plugins = ("tests.support.netns",)

SERVICE = "198.18.100.1:80/tcp"
RESERVED = "net.ipv4.ip_local_reserved_ports"
SMALL = Settings(max_flows=1000)


def config(*backends: str) -> RouterConfig:
    return config_from_flags([(SERVICE, backends or ("198.18.1.2:8080",))], settings=SMALL)


@dataclass
class Place:
    """A namespace with the wires ``cl`` and ``be``, and where a router keeps its things."""

    control: Path
    pins: Path
    wires: tuple[Wire, ...] = ()

    def router(self, made: RouterConfig | None = None, *interfaces: str) -> Router:
        options = AttachOptions(
            interfaces or ("cl", "be"), None, "object", False, self.control, self.pins
        )
        return Router(made or config(), options)

    def left_behind(self) -> list[str]:
        """What a router that is gone should have taken away."""
        left = [f"pins of {instance.name}" for instance in find_instances(self.pins)]
        left += [f"program on {name}" for name in ("cl", "be") if link_info(name).xdp_prog_id]
        if self.control.exists():
            left.append(str(self.control))
        if reserved := sysctl.read(RESERVED):
            left.append(f"reserved ports {reserved}")
        return left


def _take_frames(name: str, _far: IPRoute) -> None:
    set_offload(name, Offload.GRO, True)


@contextlib.contextmanager
def place(tmp_path: Path, bpffs: Path) -> Iterator[Place]:
    """The calling thread's namespace, which must be a fresh one, made into a router's."""
    threshold = gc.get_threshold()
    with IPRoute() as ipr:
        wires = (
            make_wire(ipr, "cl", "198.18.0.1", "198.18.0.2"),
            make_wire(ipr, "be", "198.18.1.1", "198.18.1.2"),
        )
        for wire in wires:  # else XDP cannot send there, and the kernel would have to forward
            wire.at_far(partial(_take_frames, f"{wire.near_name}p"))
        yield Place(tmp_path / "run" / "control.sock", bpffs / "xr", wires)
        for wire in wires:
            os.close(wire.far_ns)
    gc.set_threshold(*threshold)
    gc.unfreeze()


async def serve(router: Router, then: Callable[[], object]) -> None:
    """Serve until ready, do something in a thread of its own, stop."""
    stop = asyncio.Event()
    async with contextlib.AsyncExitStack() as undo:
        work = asyncio.create_task(router.serve(undo, stop))
        while not router.ready and not work.done():  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.005)
        try:
            if not work.done():
                await asyncio.to_thread(then)
        finally:
            stop.set()
            await work


def ask(where: Place, command: str) -> Any:
    with ControlClient(where.control) as client:
        return client.call(command)


@in_fresh_netns
def test_from_nothing_to_ready_and_back(tmp_path: Path, bpffs: Path) -> None:
    """Ready: attached, pinned, ports reserved, backend up, commands answered. Then all is gone."""
    with place(tmp_path, bpffs) as where:
        router = where.router()
        seen: dict[str, Any] = {}

        def look() -> None:
            seen["status"] = ask(where, "status")
            (instance,) = find_instances(where.pins)
            seen["interfaces"] = instance.interfaces
            seen["links"] = set(pinned_links(instance.path))
            seen["programs"] = {router.program_id} == {
                link_info(name).xdp_prog_id for name in ("cl", "be")
            }
            seen["ports"] = sysctl.read(RESERVED)
            seen["services"] = len(list(router.state.maps.services.items()))

        asyncio.run(serve(router, look))
        assert seen.pop("status")["backends_up"] == 1
        assert seen == {
            "interfaces": ("cl", "be"),
            "links": {"cl", "be"},
            "programs": True,
            "ports": "61000-61999",
            "services": 1,
        }
        assert not router.ready
        assert where.left_behind() == []


@in_fresh_netns
def test_the_second_interface_is_taken(tmp_path: Path, bpffs: Path) -> None:
    """Refused with the program's id before anything has changed."""
    with place(tmp_path, bpffs) as where:
        other = trivial_program("somebody_else")
        link = xdp_link.attach(other, "be", link_info("be").ifindex, None)
        with pytest.raises(xdp_link.AlreadyAttached, match=r"be: .*id \d+ \(somebody_else\)"):
            asyncio.run(serve(where.router(), lambda: None))
        assert link_info("be").xdp_prog_id
        link.close()
        os.close(other)
        assert where.left_behind() == []


@in_fresh_netns
def test_a_step_in_the_middle_fails(tmp_path: Path, bpffs: Path) -> None:
    """Whatever had been acquired by then is let go again."""
    with place(tmp_path, bpffs) as where:
        router = where.router()
        router.options = replace(router.options, mode=xdp_link.AttachMode.NATIVE)
        # cl is attached by then; a veth whose other end has that MTU takes no native program.
        where.wires[1].far_link(mtu=9000)
        with pytest.raises(xdp_link.AttachFailed, match="be: cannot attach in native mode"):
            asyncio.run(serve(router, lambda: None))
        assert where.left_behind() == []
        assert [each.mode for each in router.attachments] == [None, None]
        assert where.left_behind() == []


@in_fresh_netns
def test_a_second_daemon_is_refused(tmp_path: Path, bpffs: Path) -> None:
    """By the pins, --replace or not, and elsewhere by the control socket; the first goes on."""
    with place(tmp_path, bpffs) as where:
        errors: list[Exception] = []

        def second() -> None:
            other_pins = where.pins.with_name("other")
            for pins, replaces in ((where.pins, False), (where.pins, True), (other_pins, True)):
                other = Place(where.control, pins).router()
                other.options = replace(other.options, replace=replaces)
                try:
                    asyncio.run(serve(other, lambda: None))
                except XdpRouterError as error:
                    errors.append(error)
            assert ask(where, "status")["ready"]

        asyncio.run(serve(where.router(), second))
        assert [type(error) for error in errors] == [InstanceExists, InstanceExists, ControlInUse]
        assert "cl already has a data plane of a running daemon" in str(errors[0])
        assert "another xdp-routerd listens" in str(errors[2])
        assert where.left_behind() == []


@in_fresh_netns
def test_a_backend_behind_an_interface_that_is_not_named(tmp_path: Path, bpffs: Path) -> None:
    """Refused: its replies would come back untranslated; the interface to add is named."""
    with place(tmp_path, bpffs) as where:
        with pytest.raises(BackendRouteError, match="add be to the attach command"):
            asyncio.run(serve(where.router(None, "cl"), lambda: None))
        assert where.left_behind() == []


@in_fresh_netns
def test_a_backend_that_nobody_answers_for_is_down(tmp_path: Path, bpffs: Path) -> None:
    """The router serves with the rest, and tells the reason."""
    with place(tmp_path, bpffs) as where:
        rows: list[dict[str, Any]] = []
        made = config("198.18.1.2:8080", "198.18.1.77:8080")
        asyncio.run(serve(where.router(made), lambda: rows.extend(ask(where, "backends"))))
        assert [row["up"] for row in rows] == [True, False]
        assert rows[1]["reason"] == "no ARP answer from 198.18.1.77 on be"


@in_fresh_netns
def test_the_control_socket_has_a_directory(tmp_path: Path, bpffs: Path) -> None:
    """Made with mode 0755 whatever the umask; where that cannot be, the path is named."""
    with place(tmp_path, bpffs) as where:
        modes: list[int] = []

        def look() -> None:
            for path in (where.control.parent, where.control):
                modes.append(stat.S_IMODE(path.stat().st_mode))

        before = os.umask(0o077)
        try:
            asyncio.run(serve(where.router(), look))
        finally:
            os.umask(before)
        assert modes == [0o755, 0o660]
        (tmp_path / "file").touch()
        where.control = tmp_path / "file" / "control.sock"
        with pytest.raises(ControlError, match=r"control\.sock: .*file is not a directory"):
            asyncio.run(serve(where.router(), lambda: None))


@in_fresh_netns
def test_a_task_that_fails_is_told_and_the_rest_goes_on(
    tmp_path: Path, bpffs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One task's fault is one log line."""

    async def broken() -> None:
        raise RuntimeError("a bug")

    with place(tmp_path, bpffs) as where:
        router = where.router()

        async def main() -> None:
            router.tasks.spawn(broken(), "sweeping")
            await asyncio.sleep(0)
            await serve(router, lambda: None)

        asyncio.run(main())
    out = capsys.readouterr().out
    assert "task_failed" in out
    assert "sweeping" in out
    assert "ready" in out
