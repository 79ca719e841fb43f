# SPDX-License-Identifier: Apache-2.0
"""Notes for ``detach``, in a real map."""

from __future__ import annotations

import os

import pytest

from tests.support.bpf_programs import SMALL
from tests.support.privileges import require_root
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters.local_routes import format_addresses
from xdp_router.adapters.map_specs import MAP_SPECS
from xdp_router.adapters.notes import NOTE_BYTES, Note, Notes
from xdp_router.adapters.sysctl import format_ports
from xdp_router.core.config_handler import GATEWAY_ADDRESSES_MAX

(SPEC,) = (spec for spec in MAP_SPECS if spec.name == "notes")


def test_each_note_comes_back() -> None:
    """What was written last; empty before. Every second of a thousand ports still fits."""
    require_root()
    assert SPEC.value_size is not None
    fd = bpf.map_create(
        SPEC.type, SPEC.name, SPEC.key_size, SPEC.value_size, SPEC.entries(SMALL), SPEC.flags
    )
    try:
        notes = Notes(fd)
        assert [notes.read(note) for note in Note] == [""] * len(Note)
        ports = format_ports(range(61_000, 62_000, 2))
        notes.write(Note.RESERVED_PORTS, "1-2")
        notes.write(Note.RESERVED_PORTS, ports)
        notes.write(Note.CONTROL_SOCKET, "/run/büro.sock")
        assert [Notes(fd).read(note) for note in Note] == [ports, "", "/run/büro.sock", "", ""]
        long = int("2001" * 8, 16)
        addresses = format_addresses(range(long, long + GATEWAY_ADDRESSES_MAX))
        notes.write(Note.LOCAL_ROUTES, addresses)
        assert notes.read(Note.LOCAL_ROUTES) == addresses
        with pytest.raises(ValueError, match="CONTROL_SOCKET: 4097 bytes, expected at most 4096"):
            notes.write(Note.CONTROL_SOCKET, "x" * (NOTE_BYTES + 1))
    finally:
        os.close(fd)
