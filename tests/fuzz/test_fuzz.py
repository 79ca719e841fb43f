# SPDX-License-Identifier: Apache-2.0
"""Each fuzz target holds for its seeds, for changed seeds, and for a second of real fuzzing."""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import Target, load, names

ROOT = Path(__file__).parents[2]
CHANGED_SEEDS = 300


@pytest.fixture(params=names())
def target(request: pytest.FixtureRequest) -> Target:
    """Each target in turn."""
    return load(request.param)


def changed(data: bytes, random_source: random.Random) -> bytes:
    """Return the bytes with some of them other ones, gone, doubled or put elsewhere."""
    out = bytearray(data)
    for _ in range(random_source.randint(1, 4)):
        at = random_source.randint(0, len(out))
        end = min(len(out), at + random_source.choice((1, 1, 2, 4, 16, 200)))
        match random_source.randrange(5):
            case 0 if at < len(out):
                out[at] = random_source.choice((0, 1, 0x7F, 0xFF, random_source.randrange(256)))
            case 1:
                del out[at:end]
            case 2:
                out[at:at] = out[at:end]
            case 3 if at < len(out):
                out[at] = (out[at] + random_source.choice((1, 255))) % 256
            case _:
                out[at:at] = random_source.randbytes(random_source.randint(1, 4))
    return bytes(out)


def test_there_are_targets() -> None:
    """Fuzzing nothing would find nothing."""
    assert names()


def test_its_seeds_are_no_findings(target: Target) -> None:
    """Among them is everything that once was one."""
    assert target.seeds
    for seed in target.seeds:
        target.check(seed)


def test_changed_seeds_are_no_findings(target: Target, rng: random.Random) -> None:
    """Messages that are nearly right, and their beginnings."""
    for _ in range(CHANGED_SEEDS):
        data = changed(rng.choice(target.seeds), rng)
        target.check(data)
        target.check(data[: rng.randint(0, len(data))])


def test_any_bytes_are_no_findings(target: Target) -> None:
    """Bytes and the protocol's own words in any order."""
    words = st.sampled_from([*target.words, b"\0"])

    @settings(max_examples=100)
    @given(st.lists(st.one_of(st.binary(max_size=40), words), max_size=20).map(b"".join))
    def any_bytes(data: bytes) -> None:
        target.check(data)

    any_bytes()


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="needs 'make fuzz-deps'")
def test_a_second_of_fuzzing_finds_nothing(target: Target, tmp_path: Path) -> None:
    """The target runs under the fuzzer as 'make fuzz' runs it."""
    command = [sys.executable, "-m", "tests.fuzz", target.name, "--seconds", "1"]
    done = subprocess.run(
        [*command, "--corpus", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no findings" in done.stdout
