# SPDX-License-Identifier: Apache-2.0
"""The control socket and the health of the daemon behind it."""

from __future__ import annotations

import socket
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .doctor_finding import Finding, fail, ok, warn

_CONNECT_S = 2.0
_FULL = 0.9
"""Share of a table's entries from which on it counts as nearly full."""

_FAMILIES = {"flow_table": 4, "flow_table6": 6}
_LOST = {
    "netlink_overruns": (
        "the kernel dropped reports about the network: changes are seen late",
        "give the daemon CPU time; net.core.rmem_max may be raised",
    ),
    "bad_records": (
        "events of the XDP program could not be read: program and daemon do not match",
        "restart the daemon; report it if that does not help",
    ),
    "loop_faults": (
        "events failed inside the daemon",
        "see its log (event_failed) and report it",
    ),
    "binding_failed": (
        "decisions could not be written into pending_flows",
        "see the daemon's log (decision_lost)",
    ),
    "client_beside_backend": (
        "clients had backends in their own subnet, which answer them past the router",
        "a route to the clients' subnet by this router, on these backends; a subnet of their own; "
        'or forwarding = "fullnat"',
    ),
    "nat_ports_exhausted": (
        "the daemon found no free source port at a backend of a fullnat service: connections went "
        "to another one, or were refused",
        "widen nat_ports, or give the service more backends",
    ),
    "client_is_backend": (
        "a backend was a client of its own service: it gets another backend, or is refused",
        "let it ask its own server, by its own address",
    ),
    "first_packets_overload": (
        "more first packets were open at once than max_open_decisions: the rest were decided "
        "without a race",
        "raise max_open_decisions, or lower deadline",
    ),
}


def check_socket(path: Path) -> Iterator[Finding]:
    """State of the control socket. No daemon is no fault: nothing may be attached yet."""
    subject = str(path)
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        yield ok("no_daemon", subject, "no control socket: no daemon runs here")
        return
    except OSError as error:
        yield warn("control", subject, f"cannot be looked at: {error.strerror}", "run it as root")
        return
    if not stat.S_ISSOCK(mode):
        yield fail(
            "control",
            subject,
            "is not a socket, so attach cannot make its own there",
            "remove it, or choose another --control path",
        )
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_S)
        try:
            probe.connect(subject)
        except ConnectionRefusedError:
            yield warn(
                "control_stale",
                subject,
                "nobody listens on it: its daemon was killed",
                "attach replaces it, detach removes it",
            )
        except PermissionError:
            yield warn(
                "control_denied",
                subject,
                "this user may not use it",
                "run it with sudo, or attach with --control-group and join that group",
            )
        except OSError as error:
            yield fail(
                "control_stuck",
                subject,
                f"the daemon does not take connections: {error}",
                "see its log; systemd restarts it when WatchdogSec is set",
            )
        else:
            yield ok("control", subject, "a daemon listens")


def check_status(status: Mapping[str, Any], rooms: Mapping[int, int]) -> Iterator[Finding]:
    """The daemon's answer to ``status``. ``rooms``: flows of each family that the tables have
    room for, if known."""
    subject = f"pid {status['pid']}"
    if status["ready"]:
        yield ok("daemon", subject, f"ready, version {status['version']}")
    else:
        yield fail("daemon", subject, "is not ready: it starts, or it stops", "see its log")
    for each in status["interfaces"]:
        if each["reason"]:
            yield fail(
                "interface_lost",
                each["name"],
                f"is not attached: {each['reason']}; what is reached by it is cut off",
                f"make it, or bring it back: it is attached when an interface {each['name']} is "
                "there and free",
            )
    up, total = status["backends_up"], status["backends"]
    if not up:
        yield fail(
            "no_backend_up",
            subject,
            f"none of {total} backends is up: connections are refused",
            "xdp-router backends says why",
        )
    elif up < total:
        yield warn(
            "backends_down",
            subject,
            f"{total - up} of {total} backends are down",
            "xdp-router backends says why",
        )
    for name, (text, mend) in _LOST.items():
        count = status["engine"].get(name, 0)
        if count:
            yield warn(name, subject, f"{count} times: {text}", mend)
    for table, entries in status["flow_entries"].items():
        max_flows = rooms.get(_FAMILIES[table], 0)
        if max_flows and (entries or table == "flow_table"):
            yield judge_fill(table, entries, max_flows)


def check_services(services: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    """The daemon's answer to ``services``: limits that are reached, floods, and those that are
    led to a gateway that is not there."""
    for row in services:
        gateway = row.get("gateway")
        if gateway and not gateway["sockets"]:
            yield warn(
                "gateway_absent",
                row["name"],
                f"its connections are refused, listener {gateway['listener']} has no socket: "
                f"{gateway['reason']}",
                "attach with --gateway, or run 'xdp-routerd gateway --config FILE'",
            )
        most, name = row["max_connections"], row["name"]
        if most is not None and row["connections"] >= most:
            yield warn(
                "connections_at_limit",
                name,
                f"has {row['connections']} connections, as many as its max_connections: new ones "
                "are refused",
                "raise max_connections, or give the clients fewer connections each",
            )
        flood = row["flood"]
        if flood["active"] and flood["reason"] != "table_full":
            yield warn(
                "over_budget",
                name,
                f"is over budget ({flood['reason']}) for {flood['since_s']:.0f} s: first packets "
                "are decided by hash, without a race",
                "a flood, or too small a budget: event_rate, event_rate_per_prefix",
            )
        if flood["obstacle"]:
            yield warn(
                "stateless_impossible",
                name,
                f"is not stateless, as it should be: {flood['obstacle']}",
                "sysctl -w each of them to 1, or wait until those connections have ended",
            )


def judge_fill(table: str, entries: int, max_flows: int) -> Finding:
    """How full the table of one address family is. A flow has two entries, or one if its replies
    do not come back this way."""
    room = 2 * max_flows
    text = f"{entries} of {room} entries ({entries / room:.0%}), two for most flows"
    if entries < _FULL * room:
        return ok("flow_table", table, text)
    return warn(
        "flow_table",
        table,
        f"{text}: when it is full, new flows are hashed, and have no place of their own",
        "raise max_flows (about 400 bytes of kernel memory a flow, and 500 more with IPv6), or "
        "lower flow_idle",
    )
