# SPDX-License-Identifier: Apache-2.0
"""What the maps take of the kernel's memory, and how much there is of it.

The kernel's own sums (``map_mem_usage`` of each kind, and what is preallocated), without what every
map has once: it is refused by its tables of flows, if at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from xdp_router.core.errors import XdpRouterError

from .bpf_syscall import MapType, possible_cpus
from .map_specs import MAP_SPECS, NO_PREALLOC, MapSpec, Sizes

_ELEMENT = 48
"""Of an entry of a hash beside its key and value (struct htab_elem)."""
_BUCKET = 16
_MEMINFO = Path("/proc/meminfo")
_HASHES = (MapType.HASH, MapType.LRU_HASH)


class TooLarge(XdpRouterError):
    """The kernel has no memory for the maps that are wanted."""


def memory_of(sizes: Sizes) -> int:
    """Bytes of all maps together."""
    return sum(bytes_of(spec, spec.entries(sizes)) for spec in MAP_SPECS)


def bytes_of(spec: MapSpec, entries: int) -> int:
    """Of one map with so many entries; 0 of one that grows as it is used."""
    value = _eight(spec.value_size or 0)
    if spec.flags & NO_PREALLOC:
        return 0
    if spec.type in _HASHES:
        buckets = _BUCKET * (1 << (entries - 1).bit_length())
        return entries * (_ELEMENT + _eight(spec.key_size) + value) + buckets
    if spec.type is MapType.RINGBUF:
        return entries
    cpus = possible_cpus() if spec.type is MapType.PERCPU_ARRAY else 1
    return entries * value * cpus


def available(meminfo: Path = _MEMINFO) -> int:
    """Bytes that can be had without swapping; 0: the kernel does not tell."""
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return 0
    words = next((line.split() for line in lines if line.startswith("MemAvailable:")), [])
    return int(words[1]) << 10 if len(words) > 1 and words[1].isdigit() else 0


def most_flows(sizes: Sizes, room: int) -> int:
    """The largest ``max_flows`` whose maps, all else as in ``sizes``, take no more than ``room``
    bytes; 0: none does."""
    low, high = 0, sizes.max_flows
    while low < high:
        middle = (low + high + 1) // 2
        if memory_of(replace(sizes, max_flows=middle)) <= room:
            low = middle
        else:
            high = middle - 1
    return low


def too_large(sizes: Sizes, given: Mapping[str, int], why: Exception) -> TooLarge:
    """The refusal. ``given``: maps that are there already, whatever else of them."""
    specs = (spec for spec in MAP_SPECS if spec.private or spec.name not in given)
    needed = sum(bytes_of(spec, spec.entries(sizes)) for spec in specs)
    return TooLarge(
        f"{why}: max_flows = {sizes.max_flows} and pending_flows = {sizes.pending} take "
        f"{shown(needed)} of kernel memory, and {shown(available())} are available: lower them "
        "(max_flows by --max-flows, too)"
    )


def shown(size: int) -> str:
    """Bytes, in MB or GB."""
    megabytes = size / (1 << 20)
    return f"{megabytes / 1024:.1f} GB" if megabytes >= 1000 else f"{megabytes:.0f} MB"


def _eight(size: int) -> int:
    return (size + 7) & ~7
