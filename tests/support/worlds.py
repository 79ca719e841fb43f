# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the packet tests: the program by both loaders, each loaded once a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bpf.corpus.world import World
from tests.support.bpf_programs import LOADERS
from tests.support.privileges import require_root
from tests.support.program import LoadedProgram, Wires, router_namespace
from xdp_router.adapters.bpf_syscall import MapType


@pytest.fixture(scope="session")
def loaded() -> Iterator[dict[str, LoadedProgram]]:
    """The program by loader, loaded when it is first asked for."""
    require_root()
    programs = {name: LoadedProgram(name) for name in LOADERS}
    yield programs
    for program in programs.values():
        program.close()


@pytest.fixture(scope="module")
def wires() -> Iterator[Wires]:
    """A network namespace that the module's tests run in."""
    require_root()
    with router_namespace() as made:
        yield made


@pytest.fixture(scope="module")
def worlds(loaded: dict[str, LoadedProgram], wires: Wires) -> dict[str, World]:
    """The world of the corpus by loader."""
    return {name: World(program, wires) for name, program in loaded.items()}


@pytest.fixture(params=LOADERS)
def world(request: pytest.FixtureRequest, worlds: dict[str, World]) -> World:
    """The world of the corpus, once for each loader."""
    return worlds[request.param]


@pytest.fixture(scope="session")
def starved_programs() -> Iterator[dict[str, LoadedProgram]]:
    """The program by loader over a ``pending_flows`` that can be full."""
    require_root()
    kinds = {"pending_flows": MapType.HASH}
    programs = {name: LoadedProgram(name, kinds) for name in LOADERS}
    yield programs
    for program in programs.values():
        program.close()


@pytest.fixture(params=LOADERS)
def starved_world(
    request: pytest.FixtureRequest, starved_programs: dict[str, LoadedProgram], wires: Wires
) -> World:
    """The world of the corpus with room for one pending entry."""
    return World(starved_programs[request.param], wires)
