# SPDX-License-Identifier: Apache-2.0
"""The table of maps: sizes from limits, and the comparison with a program's own idea."""

from __future__ import annotations

import pytest

from xdp_router.adapters.map_specs import (
    MAP_SPECS,
    STAGE_PROGRAMS,
    DeclaredMap,
    ProgramMismatch,
    Sizes,
    check_declared,
)
from xdp_router.core import abi
from xdp_router.core.errors import XdpRouterError

SPECS = {spec.name: spec for spec in MAP_SPECS}


def _entries(name: str, sizes: Sizes) -> int:
    return SPECS[name].entries(sizes)


def test_two_entries_a_flow() -> None:
    """``--max-flows N`` makes a table of 2N."""
    assert _entries("flow_table", Sizes()) == 1_000_000
    assert _entries("flow_table", Sizes(max_flows=524_288)) == 1_048_576
    assert _entries("pending_flows", Sizes()) == 262_144


@pytest.mark.parametrize("count", [1, 64, 1000])
def test_a_reload_may_replace_everything(count: int) -> None:
    """Old and new services and backends fit at once; what hangs on them grows along."""
    sizes = Sizes(services=count, backends=count)
    for name in ("services", "backends", "backend_index"):
        assert _entries(name, sizes) >= 2 * count
    assert _entries("hash_tables", sizes) == _entries("services", sizes)  # each two
    assert _entries("tokens", sizes) == abi.TOKENS_SERVICE + _entries("services", sizes) // 2


def test_what_services_leave_out_has_room() -> None:
    """Twice, for a successor that leaves other ports out."""
    sizes = Sizes(services=1000, left_out=500)
    assert _entries("services", sizes) >= 2 * (1000 + 1000 + 500)


@pytest.mark.parametrize(
    "wrong", [{"ring_bytes": 5000}, {"ring_bytes": 2048}, {"ring_bytes": 0}, {"max_flows": 0}]
)
def test_impossible_sizes_are_refused(wrong: dict[str, int]) -> None:
    """A ring that the kernel would not take, or no flows at all: named, with what is expected."""
    with pytest.raises(XdpRouterError, match="expected"):
        Sizes(**wrong)  # type: ignore[arg-type]  # also of bool


def test_stages_are_in_the_order_of_the_enum() -> None:
    """Slot n of ``stages`` is for stage n."""
    assert STAGE_PROGRAMS[abi.Stage.SYN] == "stage_syn"
    assert STAGE_PROGRAMS[abi.Stage.ICMP] == "stage_icmp"
    assert len(STAGE_PROGRAMS) == abi.STAGE_MAX


def test_a_program_of_the_same_layout_is_taken() -> None:
    """A program may leave maps out; the scratch map's size is its own affair."""
    same = {
        spec.name: DeclaredMap(spec.name, spec.type, spec.key_size, spec.value_size or 999)
        for spec in MAP_SPECS
        if spec.name != "tokens"
    }
    check_declared(same)


@pytest.mark.parametrize(
    ("kind", "key_size", "value_size"), [(9, 16, 128), (1, 12, 128), (1, 16, 120)]
)
def test_a_program_of_another_layout_is_refused(kind: int, key_size: int, value_size: int) -> None:
    """A stale object is refused with the map's name and both layouts."""
    stale = DeclaredMap("flow_table", kind, key_size, value_size)
    with pytest.raises(ProgramMismatch, match=r"flow_table.*expected 1, 16, 128.*make build"):
        check_declared({"flow_table": stale})


def test_a_program_of_another_abi_is_refused() -> None:
    """The declared size of ``control`` is the version; a loader that cannot tell is believed."""
    spec = SPECS["control"]
    for entries in (None, abi.ABI_VERSION):
        same = DeclaredMap("control", spec.type, spec.key_size, abi.CONTROL_SIZE, entries)
        check_declared({"control": same})
    # Before its layouts are compared: those of another version say nothing.
    other = DeclaredMap("control", spec.type, spec.key_size, 4, abi.ABI_VERSION + 2)
    words = rf"is of ABI {abi.ABI_VERSION + 2}, this version wants {abi.ABI_VERSION}.*make build"
    with pytest.raises(ProgramMismatch, match=words):
        check_declared({"control": other})


def test_an_unknown_map_is_refused() -> None:
    """A program that wants a map which nobody would make is refused."""
    with pytest.raises(ProgramMismatch, match="novelty"):
        check_declared({"novelty": DeclaredMap("novelty", 1, 4, 4)})
