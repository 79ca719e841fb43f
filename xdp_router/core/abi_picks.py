# SPDX-License-Identifier: Apache-2.0
"""What XDP picks a backend by, as bytes: pick tables, their age, what flows show of backends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct

from .abi_keys import Buffer, from_slots, read_fields, slot_values
from .model import Signs

PICK_SLOTS = 256

_TABLE = Struct(f"={PICK_SLOTS}I")
_PICKS = Struct("=QI4x")
_LOAD = Struct("=6Q")
_SIGNS = Struct("=6Q2I")

PICK_TABLE_SIZE = _TABLE.size
PICKS_SIZE = _PICKS.size
BACKEND_LOAD_SIZE = _LOAD.size
BACKEND_SIGNS_SIZE = _SIGNS.size


@dataclass(frozen=True, slots=True)
class LoadValue:
    """``struct backend_load``: what flows themselves show of a backend. Times in ns; 0: none.

    ``closed`` does not count what the daemon has aged out.
    """

    ewma_ns: int = 0
    last_ns: int = 0
    waiting_ns: int = 0
    tried_ns: int = 0
    opened: int = 0
    closed: int = 0


def pack_pick_table(slots: Sequence[int]) -> bytes:
    """Bytes of a ``pick_tables`` value. Raises ValueError unless there are PICK_SLOTS slots."""
    if len(slots) != PICK_SLOTS:
        raise ValueError(f"a pick table has {PICK_SLOTS} slots, got {len(slots)}")
    return _TABLE.pack(*slots)


def unpack_pick_table(data: Buffer) -> tuple[int, ...]:
    """Backend id of each slot of a ``pick_tables`` value."""
    return tuple(read_fields(_TABLE, data, "pick_table"))


def pack_picks(made_ns: int, active: int) -> bytes:
    """Bytes of a ``picks`` value: which half is read, and when what it says was measured."""
    return _PICKS.pack(made_ns, active)


def unpack_picks(data: Buffer) -> tuple[int, int]:
    """``made_ns`` and ``active`` of a ``picks`` value."""
    made_ns, active = read_fields(_PICKS, data, "picks")
    return made_ns, active


def pack_backend_load(value: LoadValue) -> bytes:
    """Bytes of a ``backend_load`` value."""
    return _LOAD.pack(*slot_values(value))


def unpack_backend_load(data: Buffer) -> LoadValue:
    """Read a ``backend_load`` value."""
    return from_slots(LoadValue, read_fields(_LOAD, data, "backend_load"))


def pack_backend_signs(value: Signs) -> bytes:
    """Bytes of a ``backend_signs`` value."""
    return _SIGNS.pack(*slot_values(value))


def unpack_backend_signs(data: Buffer) -> Signs:
    """Read a ``backend_signs`` value."""
    return from_slots(Signs, read_fields(_SIGNS, data, "backend_signs"))
