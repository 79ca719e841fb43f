# SPDX-License-Identifier: Apache-2.0
"""How backends are probed: the key ``probe``, and those that a kind has beside it.

A service may have them, and each of its backends, whose own go before the service's.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from .address import PROTOCOLS
from .config_fields import Table
from .model import CONNECTIONS, Probe, ProbeKind

PAYLOAD_MAX = 512
ANSWER_MAX = 64
"""As much as XDP hands on (``ANSWER_SEEN``)."""

_OTHERS = '"icmp", "tcp:PORT", "tcp-connect", "http", "http:PORT", "stun" or "udp"'
KINDS = f'"syn", {_OTHERS}'
KINDS_FOR_UDP = '"icmp", "tcp:PORT", "tcp-connect:PORT", "http:PORT", "stun" or "udp"'

_BAD = Probe(ProbeKind.ICMP)
"""Stands for one that was bad, and reported: one problem for it is enough."""

_PORT = re.compile(r"(tcp|tcp-connect|http):([1-9][0-9]{0,4})")
_KIND_OF = {"tcp": ProbeKind.SYN, "tcp-connect": ProbeKind.CONNECT, "http": ProbeKind.HTTP}
_OF_TCP = frozenset(kind.value for kind in CONNECTIONS)
_PATH = re.compile(r"/[!-~]{0,1023}")
_HOST = re.compile(r"[!-.0-~]{1,255}")
_STATUS = re.compile(r"([1-5][0-9]{2})(?:-([1-5][0-9]{2}))?")
_STATUS_EXPECTED = 'a status or a range of them, as "200" or "200-399"'
_HEX = re.compile(r"hex:((?:[0-9a-fA-F]{2})*)")


def read_probe(table: Table, protocol: int, inherited: Probe | None = None) -> Probe | None:
    """The probe that a table asks for; ``inherited`` is a service's, for its backends.

    None: none was named, and SYN, which is for TCP, cannot be meant.
    """
    kind = _kind(table, protocol) or inherited
    if kind is None and protocol == PROTOCOLS["tcp"]:
        kind = Probe()
    if kind is not _BAD:
        kind = _http(table, kind, inherited)
    is_udp = kind is not None and kind.kind is ProbeKind.UDP
    # What a bad kind was to send is not known.
    why = "" if is_udp or kind is _BAD else _beside(kind)
    payload = _bytes(table, "probe_payload", PAYLOAD_MAX, why)
    answer = _bytes(table, "probe_answer", ANSWER_MAX, why)
    if kind is None or not is_udp:
        return kind
    same = inherited if inherited is not None and inherited.kind is ProbeKind.UDP else kind
    return Probe(
        ProbeKind.UDP,
        payload=same.payload if payload is None else payload,
        answer=same.answer if answer is None else answer,
    )


def _kind(table: Table, protocol: int) -> Probe | None:
    expected = KINDS if protocol == PROTOCOLS["tcp"] else KINDS_FOR_UDP
    text = table.text("probe", expected)
    if text is None:
        return _BAD if table.has("probe") else None
    match = _PORT.fullmatch(text)
    if match and int(match[2]) <= 65535:
        return Probe(_KIND_OF[match[1]], int(match[2]))
    if text == ProbeKind.SYN.value and protocol != PROTOCOLS["tcp"]:
        table.found("probe", "'syn', which a UDP server does not answer", expected)
    elif text in _OF_TCP and protocol != PROTOCOLS["tcp"]:
        table.found("probe", f"{text!r} without a port, which has a UDP server", expected)
    elif text in {kind.value for kind in ProbeKind}:
        return Probe(ProbeKind(text))
    else:
        table.wrong("probe", text, expected)
    return _BAD


def _http(table: Table, kind: Probe | None, inherited: Probe | None) -> Probe | None:
    """The probe with what is asked for, if it is one of HTTP; else there must be no such keys."""
    is_http = kind is not None and kind.kind is ProbeKind.HTTP
    path = table.text("probe_path", 'a path, as "/health"')
    host = table.text("probe_host", 'a name, as "shop.example"')
    status = table.text("probe_status", _STATUS_EXPECTED)
    found = {"probe_path": path, "probe_host": host, "probe_status": status}
    if not is_http or kind is None:
        for key, text in found.items():
            if text is not None:
                table.found(key, f"it {_beside(kind)}", 'probe = "http" beside it')
        return kind
    same = inherited if inherited is not None and inherited.kind is ProbeKind.HTTP else kind
    if path is not None and not _PATH.fullmatch(path):
        table.wrong("probe_path", path, 'a path that begins with "/", of printable ASCII')
        path = None
    if host is not None and not _HOST.fullmatch(host):
        table.wrong("probe_host", host, 'a name, as "shop.example"')
        host = None
    return dataclasses.replace(
        kind,
        path=same.path if path is None else path,
        host=same.host if host is None else host,
        status=same.status if status is None else _span(table, status),
    )


def _span(table: Table, text: str) -> tuple[int, int]:
    match = _STATUS.fullmatch(text)
    low = int(match[1]) if match else 0
    high = int(match[2] or low) if match else 0
    if not match or high < low:
        table.wrong("probe_status", text, _STATUS_EXPECTED)
        return Probe().status
    return low, high


def require_probes(table: Table, probes: Iterable[Probe | None]) -> None:
    """Note that a service's kind must be declared, if one of its backends is without."""
    if None in probes:
        table.found(
            "probe",
            "none, and UDP has no answer that all servers give",
            f"{KINDS_FOR_UDP}, here or for each backend",
        )


def _beside(kind: Probe | None) -> str:
    """What a payload stands beside, in vain."""
    if kind is None:
        return "without probe"
    return f'beside probe = "{kind.name}"'


def _bytes(table: Table, key: str, most: int, misplaced: str) -> bytes | None:
    """``misplaced``: why there must be none; empty: there may."""
    expected = f'text, or bytes as "hex:0a1b", of at most {most} bytes'
    text = table.text(key, expected)
    if text is None:
        return None
    match = _HEX.fullmatch(text)
    if text.startswith("hex:") and not match:
        table.wrong(key, text, expected)
        return None
    found = bytes.fromhex(match[1]) if match else text.encode()
    if len(found) > most:
        table.found(key, f"{len(found)} bytes", expected)
        return None
    if found and misplaced:  # none is as it is anyway
        table.found(key, f"it {misplaced}", 'probe = "udp" beside it')
        return None
    return found
