# SPDX-License-Identifier: Apache-2.0
"""Names of services and backends, kept in a real map."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.bpf_programs import SMALL
from tests.support.privileges import require_root
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters.bpf_ctypes import BpfError
from xdp_router.adapters.map_specs import MAP_SPECS
from xdp_router.adapters.names import NAME_BYTES, Names

(SPEC,) = (spec for spec in MAP_SPECS if spec.name == "names")


@pytest.fixture
def fd() -> Iterator[int]:
    require_root()
    assert SPEC.value_size is not None
    made = bpf.map_create(
        SPEC.type, SPEC.name, SPEC.key_size, SPEC.value_size, SPEC.entries(SMALL), SPEC.flags
    )
    yield made
    os.close(made)


def test_services_and_backends_have_names_of_their_own(fd: int) -> None:
    """The same number names a service and a backend; a second write renames."""
    names = Names(fd)
    assert names.read() == ({}, {})
    names.write_service(0, "web")
    names.write_backend(0, "b1")
    names.write_backend(7, "b8")
    names.write_backend(0, "b-one")
    assert Names(fd).read() == ({0: "web"}, {0: "b-one", 7: "b8"})


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("198.18.100.1:80/tcp", "198.18.100.1:80/tcp"),
        ("büro-π", "büro-π"),
        ("x" * 64, "x" * 64),
        ("x" * 65, "x" * 64),
        ("x" * 63 + "π", "x" * 63),
        ("", ""),
    ],
)
def test_a_name_comes_back_as_far_as_it_fits(fd: int, name: str, read: str) -> None:
    """Names are UTF-8; a character that does not fit whole is left out."""
    assert NAME_BYTES == 64
    names = Names(fd)
    names.write_service(3, name)
    assert names.read() == ({3: read}, {})


def test_a_full_table_is_an_error(fd: int) -> None:
    """More names than the map was made for: an error that names the map."""
    names = Names(fd)
    entries = SPEC.entries(SMALL)
    for number in range(entries):
        names.write_backend(number, f"b{number}")
    with pytest.raises(BpfError, match="names"):
        names.write_backend(entries, "one too many")


def test_many_names_are_written_at_once_and_only_those_that_are_wanted_kept(fd: int) -> None:
    """Whatever is not named goes; a service and a backend of one number are told apart."""
    names = Names(fd)
    names.write_all({0: "web", 1: "shop"}, {number: f"b{number}" for number in range(50)})
    assert len(names.read()[1]) == 50
    names.keep_only([1], [0, 49])
    assert names.read() == ({1: "shop"}, {0: "b0", 49: "b49"})
    names.delete_backend(49)
    names.delete_backend(7)
    assert names.read() == ({1: "shop"}, {0: "b0"})
    names.keep_only([], [])
    assert names.read() == ({}, {})
