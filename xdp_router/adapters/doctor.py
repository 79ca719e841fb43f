# SPDX-License-Identifier: Apache-2.0
"""``xdp-router doctor``: everything that can be seen from this host, in one list of findings.

Works before anything is attached, beside a running daemon, and after one that was killed.
Changes nothing.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from xdp_router.core.config import RouterConfig
from xdp_router.core.errors import XdpRouterError
from xdp_router.core.flow_room import rooms_of

from . import (
    doctor_config,
    doctor_daemon,
    doctor_dataplane,
    doctor_handoff,
    doctor_interface,
    doctor_network,
    doctor_pins,
    doctor_system,
    doctor_target,
)
from .control import DEFAULT_CONTROL_PATH, ControlError
from .control_client import ControlClient
from .doctor_dataplane import Facts
from .doctor_finding import Finding, from_warning, guarded, warn
from .doctor_interface import OurLink
from .doctor_target import Target
from .host import HostError, LinkInfo, link_info
from .host_checks import HostWarning, merge_uncertain
from .pins import DEFAULT_ROOT as ROOT
from .pins import InstanceRef, find_instances


def examine(
    control: Path, pins: Path, interfaces: Sequence[str] = (), config: RouterConfig | None = None
) -> list[Finding]:
    """Look at everything, from the calling thread's network namespace.

    ``interfaces`` and ``config``: what is to be attached; without them, what is attached.
    Waits for ARP about backends, a second at most. Raises nothing that a host can cause.
    """
    return _Examination(control, pins).run(tuple(interfaces), config)


class _Examination:
    def __init__(self, control: Path, pins: Path) -> None:
        self._control = control
        self._pins = pins
        self._found: list[Finding] = []
        self._answers = _ask(control)
        self._instances = _instances(pins)
        self._facts: dict[str, Facts] = {}

    def run(self, interfaces: tuple[str, ...], config: RouterConfig | None) -> list[Finding]:
        found, pins = self._found, self._pins
        running = bool(self._answers)
        guarded("host", lambda: doctor_system.check_privileges(running), found)
        guarded("host", doctor_system.check_kernel, found)
        guarded(str(pins), lambda: doctor_system.check_bpffs(pins), found)
        guarded("host", doctor_system.check_loaders, found)
        guarded(str(pins), lambda: doctor_pins.check_pins(pins), found)
        for instance in self._instances:
            self._look_into(instance)
        control = self._control
        guarded(str(control), lambda: doctor_daemon.check_socket(control), found)
        if running:
            rooms = doctor_dataplane.rooms_in(self._facts.values())
            status = self._answers["status"]
            guarded("daemon", lambda: doctor_daemon.check_status(status, rooms), found)
            services = self._answers["services"]
            guarded("daemon", lambda: doctor_daemon.check_services(services), found)
        if not self._elsewhere():
            target = self._target(interfaces, config)
            self._look_around(target)
            if config is not None:
                self._look_at(config, target.interfaces)
        return found

    def _look_at(self, config: RouterConfig, interfaces: tuple[str, ...]) -> None:
        """What speaks against just this configuration."""
        check = partial(doctor_config.check_room, self._pins, interfaces, config)
        guarded("configuration", check, self._found)
        if not self._answers:  # else it may be our own daemon that listens there
            guarded("metrics", lambda: doctor_config.check_metrics(config), self._found)

    def _look_into(self, instance: InstanceRef) -> None:
        def look() -> list[Finding]:
            facts = doctor_dataplane.read_facts(instance)
            if facts is None:
                return []  # told where pins are looked at
            self._facts[instance.name] = facts
            return list(doctor_dataplane.judge_facts(instance.name, facts, time.monotonic_ns()))

        guarded(instance.name, look, self._found)

    def _elsewhere(self) -> bool:
        """Whether what is attached is in another network namespace; that is a finding."""
        for instance in self._instances:
            try:
                elsewhere = doctor_pins.in_other_namespace(instance)
            except XdpRouterError:
                continue
            if elsewhere:
                status = self._answers.get("status")
                into = f"nsenter -t {status['pid']} -n" if status else "ip netns exec NAME"
                self._found.append(
                    warn(
                        "other_namespace",
                        instance.name,
                        "was attached in another network namespace: interfaces, routes and ports "
                        "are not looked at from here",
                        f"sudo {into} xdp-router{self._place()} doctor",
                    )
                )
                return True
        return False

    def _place(self) -> str:
        """Options that find this router; variables would not do: sudo drops them."""
        options = (("--control", self._control, DEFAULT_CONTROL_PATH), ("--pins", self._pins, ROOT))
        return "".join(
            f" {option} {shlex.quote(str(path))}"
            for option, path, default in options
            if path != Path(default)
        )

    def _target(self, interfaces: tuple[str, ...], config: RouterConfig | None) -> Target:
        attached = [name for instance in self._instances for name in instance.interfaces]
        names = interfaces or tuple(attached)
        if config is not None:
            return doctor_target.from_config(config, names)
        facts = next(iter(self._facts.values()), None)
        return doctor_target.from_answers(
            names,
            self._answers.get("services", []),
            self._answers.get("backends", []),
            facts.ports if facts else None,
            facts.nat_ports if facts else None,
            self._answers.get("status"),
        )

    def _look_around(self, target: Target) -> None:
        found = self._found
        ours: dict[str, OurLink] = {}
        try:
            ours = doctor_pins.attachments(self._pins)
        except (XdpRouterError, OSError):
            pass  # told where pins are looked at
        links: list[LinkInfo] = []
        unseen: list[HostWarning] = []
        for name in target.interfaces:
            guarded(name, partial(doctor_interface.check_link, name, ours.get(name), unseen), found)
            try:
                links.append(link_info(name))
            except HostError:
                pass  # told just before
        found.extend(map(from_warning, merge_uncertain(unseen)))
        services, local = target.with_backends, target.made_local
        own, endpoints = target.known_by_us, target.endpoints
        off = target.kernel_handoff == "off"
        guarded(
            "interfaces",
            lambda: doctor_handoff.check_handoff(links, services, own, off=off, made_local=local),
            found,
        )
        guarded("host", lambda: doctor_network.check_forwarding(endpoints), found)
        guarded("interfaces", lambda: doctor_network.check_ipv6(endpoints, links), found)
        rooms = doctor_dataplane.rooms_in(self._facts.values())
        if not rooms and target.max_flows:
            rooms = rooms_of(target.max_flows)
        guarded("services", lambda: doctor_dataplane.judge_limits(target.limits, rooms), found)
        guarded("host", doctor_network.check_firewall, found)
        ports = target.ports
        if ports is not None:
            reserved = any(facts.ports == ports for facts in self._facts.values())
            guarded("ports", lambda: doctor_network.check_ports(*ports, reserved), found)
        nat_ports = target.nat_ports
        if nat_ports is not None:
            reserved = any(facts.nat_ports == nat_ports for facts in self._facts.values())
            check = doctor_network.check_nat_ports
            guarded("ports", partial(check, *nat_ports, reserved), found)
        guarded(
            "services",
            lambda: doctor_network.check_services(
                target.services, links, target.left_out, target.taken_up
            ),
            found,
        )
        guarded(
            "backends",
            lambda: doctor_network.check_backends(
                target.answered_through_us, target.backends, links, target.on_link
            ),
            found,
        )


def _ask(control: Path) -> dict[str, Any]:
    """A daemon's answers; empty when there is none that answers."""
    try:
        with ControlClient(control, timeout_s=3.0) as client:
            return {name: client.call(name) for name in ("status", "services", "backends")}
    except (ControlError, OSError):
        return {}


def _instances(pins: Path) -> list[InstanceRef]:
    try:
        return find_instances(pins)
    except XdpRouterError:
        return []  # told where pins are looked at
