# SPDX-License-Identifier: Apache-2.0
"""Sequence numbers of probes: a keyed hash, so that XDP recognises answers without a table.

The hash is HalfSipHash-2-4 (Aumasson, Bernstein) with a 64-bit key and 32-bit output over what
stands in the probe's headers: backend address, backend port, probe port, probe address, all
big-endian; 12 bytes, or 36 with IPv6. ``ebpf/`` computes the same. The low 24 bits of a sequence
number are the hash's and authenticate an answer; the high 8 bits are the hash's plus a nonce,
which tells probes of one (backend, port) pair apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from .address import is_ipv6

_WORD = Struct("<I")
_U32 = 0xFFFFFFFF
_AUTHENTIC = 0x00FFFFFF
_NONCE_SHIFT = 24
_CACHE_LIMIT = 65_536
"""64 backends times the default 1,000 probe ports; about 10 MB when full."""


def _rounds(v0: int, v1: int, v2: int, v3: int, count: int) -> tuple[int, int, int, int]:
    for _ in range(count):
        v0 = (v0 + v1) & _U32
        v1 = ((v1 << 5 | v1 >> 27) & _U32) ^ v0
        v0 = (v0 << 16 | v0 >> 16) & _U32
        v2 = (v2 + v3) & _U32
        v3 = ((v3 << 8 | v3 >> 24) & _U32) ^ v2
        v0 = (v0 + v3) & _U32
        v3 = ((v3 << 7 | v3 >> 25) & _U32) ^ v0
        v2 = (v2 + v1) & _U32
        v1 = ((v1 << 13 | v1 >> 19) & _U32) ^ v2
        v2 = (v2 << 16 | v2 >> 16) & _U32
    return v0, v1, v2, v3


def half_siphash_words(key: tuple[int, int], words: Sequence[int]) -> int:
    """HalfSipHash-2-4-32 of a message, given as little-endian words."""
    k0, k1 = key
    v0, v1, v2, v3 = k0, k1, 0x6C796765 ^ k0, 0x74656462 ^ k1
    # The last word is the message length in the top byte: no bytes are left over.
    for word in (*words, 4 * len(words) << 24):
        v0, v1, v2, v3 = _rounds(v0, v1, v2, v3 ^ word, 2)
        v0 ^= word
    v0, v1, v2, v3 = _rounds(v0, v1, v2 ^ 0xFF, v3, 4)
    return v1 ^ v3


def probe_hash(
    key: tuple[int, int], backend_addr: int, backend_port: int, probe_port: int, probe_addr: int
) -> int:
    """Keyed hash of one probe's addresses, which are of one family, and ports."""
    size = 16 if is_ipv6(backend_addr) else 4
    message = (
        backend_addr.to_bytes(size, "big")
        + backend_port.to_bytes(2, "big")
        + probe_port.to_bytes(2, "big")
        + probe_addr.to_bytes(size, "big")
    )
    return half_siphash_words(key, [word for (word,) in _WORD.iter_unpack(message)])


def probe_seq(hash_value: int, nonce: int) -> int:
    """Sequence number of a probe; ``nonce`` counts modulo 256."""
    return (hash_value + (nonce << _NONCE_SHIFT)) & _U32


def probe_nonce(hash_value: int, seq: int) -> int:
    """Nonce that ``seq`` was made with, 0 to 255."""
    return ((seq - hash_value) & _U32) >> _NONCE_SHIFT


def verify(hash_value: int, seq: int) -> bool:
    """Whether ``seq`` was made from ``hash_value``, whatever its nonce.

    ``seq`` is the probe's own number: an answer acknowledges it plus 1.
    """
    return (hash_value ^ seq) & _AUTHENTIC == 0


class ProbeHashes:
    """Remembers the hash of each (backend address, backend port, probe port, probe address).

    One computation takes about 10 µs, 25 with IPv6: more than a whole decision may.
    """

    __slots__ = ("_hashes", "_key", "_limit")

    def __init__(self, key: tuple[int, int], limit: int = _CACHE_LIMIT) -> None:
        """``key`` is ``control.probe_key``, two 32-bit words. Raises ValueError otherwise."""
        if len(key) != 2 or not all(0 <= word <= _U32 for word in key):
            raise ValueError("a probe key is two words from 0 to 0xffffffff")
        self._key = key
        self._limit = limit
        self._hashes: dict[tuple[int, int, int, int], int] = {}

    def get(self, backend_addr: int, backend_port: int, probe_port: int, probe_addr: int) -> int:
        """Hash for one probe's addresses and ports."""
        name = (backend_addr, backend_port, probe_port, probe_addr)
        value = self._hashes.get(name)
        if value is None:
            # Backends that were removed leave their hashes behind: start over when full.
            if len(self._hashes) >= self._limit:
                self._hashes.clear()
            value = self._hashes[name] = probe_hash(self._key, *name)
        return value

    def __len__(self) -> int:
        return len(self._hashes)
