# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the packet tests: the program by both loaders, for IPv4 and IPv6, loaded once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bpf.corpus.world import World
from tests.bpf.corpus.world6 import World6
from tests.support.bpf_programs import LOADERS
from tests.support.privileges import require_root
from tests.support.program import (
    SIZES,
    SIZES_IPV6,
    LoadedProgram,
    Wires,
    router_namespace,
)
from xdp_router.adapters.bpf_syscall import MapType

WORLDS = [(loader, family) for family in (4, 6) for loader in LOADERS]
"""Every program that the tests run: by either loader, for IPv4 alone and for IPv6."""


def world_id(which: tuple[str, int]) -> str:
    """How a world is called in the names of tests."""
    loader, family = which
    return f"{loader}-ipv{family}"


class Programs:
    """The program by loader and family, loaded when it is first asked for."""

    def __init__(self, kinds: dict[str, MapType] | None = None) -> None:
        self._kinds = kinds or {}
        self._loaded: dict[tuple[str, int], LoadedProgram] = {}

    def get(self, loader: str, family: int) -> LoadedProgram:
        """The program; it stays the fixture's."""
        which = loader, family
        if which not in self._loaded:
            kinds = {
                f"{name}6" if family == 6 and name == "pending_flows" else name: kind
                for name, kind in self._kinds.items()
            }
            self._loaded[which] = LoadedProgram(loader, kinds, SIZES if family == 4 else SIZES_IPV6)
        return self._loaded[which]

    def close(self) -> None:
        """Free all of them."""
        for program in self._loaded.values():
            program.close()


def make_world(programs: Programs, which: tuple[str, int], wires: Wires) -> World:
    """A world of the family."""
    kind = World if which[1] == 4 else World6
    return kind(programs.get(*which), wires)


@pytest.fixture(scope="session")
def programs() -> Iterator[Programs]:
    """The program by loader and family."""
    require_root()
    made = Programs()
    yield made
    made.close()


@pytest.fixture(scope="module")
def wires() -> Iterator[Wires]:
    """A network namespace that the module's tests run in."""
    require_root()
    with router_namespace() as made:
        yield made


@pytest.fixture(scope="module")
def made_worlds() -> dict[tuple[str, int], World]:
    """Worlds that the module's tests have used."""
    return {}


@pytest.fixture(params=(4, 6), ids=("ipv4", "ipv6"))
def worlds(
    request: pytest.FixtureRequest,
    programs: Programs,
    wires: Wires,
    made_worlds: dict[tuple[str, int], World],
) -> dict[str, World]:
    """The worlds of the corpus by loader, once for each family."""
    return {
        loader: _world(programs, (loader, request.param), wires, made_worlds) for loader in LOADERS
    }


def _world(
    programs: Programs,
    which: tuple[str, int],
    wires: Wires,
    made: dict[tuple[str, int], World],
) -> World:
    if which not in made:
        made[which] = make_world(programs, which, wires)
    return made[which]


@pytest.fixture(params=WORLDS, ids=world_id)
def world(
    request: pytest.FixtureRequest,
    programs: Programs,
    wires: Wires,
    made_worlds: dict[tuple[str, int], World],
) -> World:
    """The world of the corpus, once for each loader and family."""
    return _world(programs, request.param, wires, made_worlds)


@pytest.fixture(scope="session")
def starved_programs() -> Iterator[Programs]:
    """The program over a ``pending_flows`` that can be full."""
    require_root()
    made = Programs({"pending_flows": MapType.HASH, "fragments": MapType.HASH})
    yield made
    made.close()


@pytest.fixture(params=WORLDS, ids=world_id)
def starved_world(
    request: pytest.FixtureRequest, starved_programs: Programs, wires: Wires
) -> World:
    """The world of the corpus with room for one pending entry."""
    return make_world(starved_programs, request.param, wires)
