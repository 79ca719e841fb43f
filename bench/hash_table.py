# SPDX-License-Identifier: Apache-2.0
"""What moves in a service's consistent-hash table when a backend leaves; how exact shares are."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from xdp_router.core.abi import HASH_SLOTS
from xdp_router.core.model import Backend, Endpoint
from xdp_router.core.selection import build_table

from .rows import Options, Row, summary

COUNTS = (2, 4, 8, 16, 32, 64)
MAX_WEIGHT = 1_000
GOAL = 1.2
_SEED = 2026
_MOST_LEAVING = 16
"""Backends of one service that leave, one after the other."""


@dataclass
class Moves:
    """Slots that the backends which left had, and slots that changed owner with them."""

    had: int = 0
    moved: int = 0
    worst: float = 0.0
    ratios: list[float] = field(default_factory=list)

    def add(self, before: Sequence[int], after: Sequence[int], ideal: int) -> None:
        """One backend left, or one weight changed: ``ideal`` slots had to move."""
        moved = sum(a != b for a, b in zip(before, after, strict=True))
        self.had += ideal
        self.moved += moved
        if ideal:
            self.ratios.append(moved / ideal)
            self.worst = max(self.worst, self.ratios[-1])

    @property
    def mean(self) -> float:
        """Moved slots for each that had to move."""
        return self.moved / self.had if self.had else 0.0


def backends(source: random.Random, count: int, most: int) -> list[Backend]:
    """``count`` backends at random addresses with weights from 1 to ``most``."""
    addresses = source.sample(range(0xC6120000, 0xC6140000), count)
    return [
        Backend(number, f"b{number}", Endpoint(address, 8080), 0, source.randint(1, most))
        for number, address in enumerate(addresses)
    ]


def error(table: Sequence[int], usable: Sequence[Backend]) -> float:
    """The largest difference between a share and its ideal, in slots."""
    total = sum(each.weight for each in usable)
    shares = Counter(table)
    return max(abs(shares[each.id] - HASH_SLOTS * each.weight / total) for each in usable)


def _average(source: random.Random, count: int, most: int, services: int) -> dict[str, object]:
    leaves, again, edited, weighed = Moves(), Moves(), Moves(), Moves()
    errors: dict[str, list[float]] = {"all up": [], "one down": [], "a quarter down": []}
    returned = True
    for _ in range(services):
        members = backends(source, count, most)
        table = build_table(members)
        shares = Counter(table)
        errors["all up"].append(error(table, members))
        ids = {each.id for each in members}
        few = set(source.sample(sorted(ids), max(2, count - count // 4)))
        partial = build_table(members, few)
        some = [each for each in members if each.id in few]
        errors["a quarter down"].append(error(partial, some))
        for gone in source.sample(members, min(count, _MOST_LEAVING)):
            rest = [each for each in members if each is not gone]
            without = build_table(members, ids - {gone.id})
            leaves.add(table, without, shares[gone.id])
            returned &= build_table(members[::-1], ids) == table
            errors["one down"].append(error(without, rest))
            edited.add(table, build_table(rest), shares[gone.id])
            if gone.id in few:
                again.add(partial, build_table(members, few - {gone.id}), partial.count(gone.id))
        heavier = [
            Backend(each.id, each.name, each.endpoint, 0, each.weight * (1 + (each.id == 0)))
            for each in members
        ]
        after = build_table(heavier)
        needed = (Counter(after) - shares).total()
        weighed.add(table, after, needed)
    return {
        "leaves": leaves,
        "leaves, a quarter down": again,
        "removed from the file": edited,
        "weight doubled": weighed,
        "errors": errors,
        "returned": returned,
    }


def _timed(build: Callable[[], object], times: int) -> list[float]:
    out = []
    for _ in range(times):
        start = time.perf_counter()
        build()
        out.append((time.perf_counter() - start) * 1e6)
    return out


def disruption(options: Options) -> Iterator[Row]:
    """Rows for equal weights and for weights at random, then what a table takes to make."""
    source = random.Random(_SEED)
    for most, name in ((1, "equal weights"), (MAX_WEIGHT, f"weights 1 to {MAX_WEIGHT:,}")):
        values: dict[str, object] = {}
        worst = 0.0
        returned = True
        texts = []
        for count in COUNTS:
            found = _average(source, count, most, options.pick(3, 20))
            moves = {key: each for key, each in found.items() if isinstance(each, Moves)}
            errors = found["errors"]
            assert isinstance(errors, dict)
            worst = max(worst, moves["leaves"].worst, moves["leaves, a quarter down"].mean)
            returned &= bool(found["returned"])
            values[str(count)] = {
                **{
                    key: {"mean": each.mean, "worst": each.worst, "samples": len(each.ratios)}
                    for key, each in moves.items()
                },
                "share_error_slots": {key: summary(each) for key, each in errors.items()},
            }
            texts.append(
                f"{count}: "
                + ", ".join(f"{each.mean:.3f}/{each.worst:.3f}" for each in moves.values())
                + ", error "
                + "/".join(f"{max(each):.1f}" for each in errors.values())
            )
        yield Row(
            f"slots that move, {name}",
            f"<= {GOAL} x those of the backend that leaves; all back with it",
            "; ".join(texts),
            worst <= GOAL and returned,
            f"mean/worst ratio for each number of backends, {HASH_SLOTS} slots; down or drained "
            "(judged), or taken out of the configuration, or its weight doubled (told, against "
            "what exact shares need); error: largest difference from the ideal share, in slots",
            values,
        )
    samples = {}
    for most in (1, MAX_WEIGHT):
        members = backends(source, 16, most)
        for down in (0, 1, 8):
            up = set(range(down, 16))
            times = _timed(partial(build_table, members, up), options.pick(50, 400))
            samples[f"weights to {most}, {down} down"] = summary(times)
    yield Row(
        "making one table of 16 backends",
        "told",
        ", ".join(f"{key}: {each['median']:.0f} us" for key, each in samples.items()),
        None,
        "build_table, median",
        samples,
    )
