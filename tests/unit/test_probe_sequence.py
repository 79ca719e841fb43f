# SPDX-License-Identifier: Apache-2.0
"""Probe sequence numbers: HalfSipHash against its authors' vectors, nonce, cache."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xdp_router.core.probe_sequence import (
    ProbeHashes,
    half_siphash_words,
    probe_hash,
    probe_nonce,
    probe_seq,
    verify,
)

U32 = st.integers(0, 0xFFFFFFFF)
U128 = st.integers(1 << 32, (1 << 128) - 1)
U16 = st.integers(0, 0xFFFF)

# Published with the reference implementation (veorq/SipHash, vectors.h, hsip32): key 00..07,
# message 00, 01, ... of the length that is the index.
VECTORS = [
    *("a9359f5b", "27475ab8", "fa62a603", "8afee704", "2a6e4689", "c5fab669", "5863fc23"),
    *("8bcf63c5", "d0b8848f", "f806e779", "94b07934", "08083050", "57f0872f", "77e663ff"),
    *("d6fff87c", "74fe2b97", "d9b5ac84"),
]


def textbook(key: bytes, message: bytes) -> bytes:
    """HalfSipHash-2-4-32 of any message, written from the paper, state in a list."""

    def rotate(x: int, bits: int) -> int:
        return ((x << bits) | (x >> (32 - bits))) & 0xFFFFFFFF

    def sip_round(v: list[int]) -> None:
        for a, b, c, d, r1, r2 in ((0, 1, 2, 3, 5, 8), (2, 1, 0, 3, 13, 7)):
            v[a] = (v[a] + v[b]) & 0xFFFFFFFF
            v[c] = (v[c] + v[d]) & 0xFFFFFFFF
            v[b] = rotate(v[b], r1) ^ v[a]
            v[d] = rotate(v[d], r2) ^ v[c]
            v[a] = rotate(v[a], 16)

    k0, k1 = struct.unpack("<II", key)
    v = [k0, k1, 0x6C796765 ^ k0, 0x74656462 ^ k1]
    padded = message + bytes(3 - len(message) % 4) + bytes([len(message) & 255])
    for (word,) in struct.iter_unpack("<I", padded):
        v[3] ^= word
        sip_round(v)
        sip_round(v)
        v[0] ^= word
    v[2] ^= 0xFF
    for _ in range(4):
        sip_round(v)
    return struct.pack("<I", v[1] ^ v[3])


def test_textbook_agrees_with_the_published_vectors() -> None:
    """The plain implementation that the next tests compare with is itself right."""
    for length, expected in enumerate(VECTORS):
        assert textbook(bytes(range(8)), bytes(range(length))).hex() == expected


@pytest.mark.parametrize("length", [0, 4, 8, 12, 16])
def test_published_vectors_of_whole_words(length: int) -> None:
    """Ours gives the published hashes of the messages that it is made for: words, no rest."""
    key = struct.unpack("<II", bytes(range(8)))
    words = struct.unpack(f"<{length // 4}I", bytes(range(length)))
    assert (
        half_siphash_words((key[0], key[1]), words).to_bytes(4, "little").hex() == VECTORS[length]
    )


@given(U32, U32, U32, U16, U16, U32)
def test_hash_is_over_the_bytes_in_the_headers(
    k0: int, k1: int, backend: int, port: int, probe_port: int, probe: int
) -> None:
    """The message is backend address, backend port, probe port, probe address, big-endian."""
    message = struct.pack(">IHHI", backend, port, probe_port, probe)
    expected = int.from_bytes(textbook(struct.pack("<II", k0, k1), message), "little")
    assert probe_hash((k0, k1), backend, port, probe_port, probe) == expected


@given(U32, U32, U128, U16, U16, U128)
def test_hash_of_ipv6_is_over_36_bytes(
    k0: int, k1: int, backend: int, port: int, probe_port: int, probe: int
) -> None:
    """The same fields in the same order, the addresses with 16 bytes each."""
    message = (
        backend.to_bytes(16, "big")
        + struct.pack(">HH", port, probe_port)
        + probe.to_bytes(16, "big")
    )
    assert len(message) == 36
    expected = int.from_bytes(textbook(struct.pack("<II", k0, k1), message), "little")
    assert probe_hash((k0, k1), backend, port, probe_port, probe) == expected


def test_families_of_one_probe_do_not_mix() -> None:
    """An IPv4 backend cannot be probed from an IPv6 address: a fault of whoever asks."""
    with pytest.raises(OverflowError):
        probe_hash((1, 2), 0xC6120102, 80, 61000, 1 << 127)


def test_reference_hashes_for_the_xdp_program() -> None:
    """One worked example of each family, for whoever writes the C side."""
    db8 = 0x20010DB8 << 96
    key = (0x03020100, 0x07060504)
    assert probe_hash(key, db8 | 1 << 64 | 2, 8080, 61000, db8 | 1 << 64 | 1) == 0x0537D789
    assert probe_hash((0x03020100, 0x07060504), 0xC6120102, 8080, 61000, 0xC6120101) == 0x276F7F3D


@given(U32, st.integers(0, 255))
def test_every_nonce_verifies_and_is_found_again(hash_value: int, nonce: int) -> None:
    """The nonce changes the top byte only: the answer still verifies, and gives it back."""
    seq = probe_seq(hash_value, nonce)
    assert 0 <= seq <= 0xFFFFFFFF
    assert verify(hash_value, seq)
    assert probe_nonce(hash_value, seq) == nonce
    assert probe_seq(hash_value, nonce + 256) == seq


@given(U32, st.integers(0, 23))
def test_a_wrong_low_bit_does_not_verify(hash_value: int, bit: int) -> None:
    """Each of the low 24 bits must fit."""
    assert not verify(hash_value, hash_value ^ (1 << bit))


def test_cache_gives_the_same_hash_and_stays_bounded() -> None:
    """Hashes are remembered; when the limit is reached the cache starts over."""
    hashes = ProbeHashes((1, 2), limit=3)
    for port in (61000, 61001, 61000, 61002, 61003):
        assert hashes.get(7, 80, port, 9) == probe_hash((1, 2), 7, 80, port, 9)
        assert len(hashes) <= 3
    assert len(hashes) == 1


def test_keys_are_two_words() -> None:
    """A key that does not fit control.probe_key is refused."""
    with pytest.raises(ValueError, match="two words"):
        ProbeHashes((1, 1 << 32))
