# SPDX-License-Identifier: Apache-2.0
"""Reads structs and enums from the type information (BTF) of a 64-bit ELF object."""

from __future__ import annotations

import struct
from dataclasses import dataclass

_INT, _PTR, _ARRAY, _STRUCT, _UNION, _ENUM, _TYPEDEF = 1, 2, 3, 4, 5, 6, 8
_FUNC_PROTO, _VAR, _DATASEC, _DECL_TAG, _ENUM64 = 13, 14, 15, 17, 19
# Bytes after the 12-byte head: fixed ones, and those for each of vlen items.
_FIXED = {_INT: 4, _ARRAY: 12, _VAR: 4, _DECL_TAG: 4}
_PER_ITEM = {_STRUCT: 12, _UNION: 12, _ENUM: 8, _FUNC_PROTO: 8, _DATASEC: 12, _ENUM64: 12}


@dataclass(frozen=True)
class Member:
    """One field of a struct; ``type`` is its outermost name, such as ``__be32``."""

    offset: int
    size: int
    type: str


@dataclass(frozen=True)
class Btf:
    """Sizes and members of structs, values of enums, by name."""

    sizes: dict[str, int]
    members: dict[str, dict[str, Member]]
    enums: dict[str, dict[str, int]]


@dataclass(frozen=True)
class _Type:
    name: str
    kind: int
    vlen: int
    size_or_type: int
    extra: bytes


def _section(elf: bytes, name: str) -> bytes:
    (table,) = struct.unpack_from("<Q", elf, 40)
    size, count, names = struct.unpack_from("<HHH", elf, 58)

    def header(index: int) -> tuple[int, int, int]:
        at = table + index * size
        return struct.unpack_from("<I20xQQ", elf, at)

    strings = header(names)[1]
    for index in range(count):
        name_at, offset, length = header(index)
        start = strings + name_at
        if elf[start : elf.index(b"\0", start)].decode() == name:
            return elf[offset : offset + length]
    raise ValueError(f"the object has no section {name}")


def parse_btf(elf: bytes) -> Btf:
    """Parse the ``.BTF`` section of a little-endian object."""
    raw = _section(elf, ".BTF")
    magic, _, _, head, types_at, types_len, strings_at, _ = struct.unpack_from("<HBBIIIII", raw)
    assert magic == 0xEB9F

    def text(at: int) -> str:
        start = head + strings_at + at
        return raw[start : raw.index(b"\0", start)].decode()

    types = [_Type("void", 0, 0, 0, b"")]
    at, end = head + types_at, head + types_at + types_len
    while at < end:
        name_at, info, size_or_type = struct.unpack_from("<III", raw, at)
        kind, vlen = info >> 24 & 0x1F, info & 0xFFFF
        length = _FIXED.get(kind, 0) + _PER_ITEM.get(kind, 0) * vlen
        extra = raw[at + 12 : at + 12 + length]
        types.append(_Type(text(name_at), kind, vlen, size_or_type, extra))
        at += 12 + length

    def size_of(index: int) -> int:
        found = types[index]
        if found.kind == _ARRAY:
            element, _, count = struct.unpack("<III", found.extra)
            return size_of(element) * int(count)
        if found.kind == _PTR:
            return 8
        if found.kind in (_INT, _STRUCT, _UNION, _ENUM, _ENUM64):
            return found.size_or_type
        return size_of(found.size_or_type)

    structs = [t for t in types if t.kind == _STRUCT and t.name]
    members = {
        each.name: {
            text(name_at): Member(bits // 8, size_of(index), types[index].name)
            for name_at, index, bits in struct.iter_unpack("<III", each.extra)
        }
        for each in structs
    }
    enums = {
        each.name: {
            text(name_at): value for name_at, value in struct.iter_unpack("<Ii", each.extra)
        }
        for each in types
        if each.kind == _ENUM
    }
    return Btf({each.name: each.size_or_type for each in structs}, members, enums)
