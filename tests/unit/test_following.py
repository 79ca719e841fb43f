# SPDX-License-Identifier: Apache-2.0
"""Maps, strategies and tables follow who may be chosen."""

from __future__ import annotations

from functools import partial

from tests.support.cast import service
from xdp_router.core.availability import Availability
from xdp_router.core.commands import (
    Command,
    PublishHashTable,
    SetBackendDraining,
    SetBackendUp,
)
from xdp_router.core.engine_settings import EngineSettings
from xdp_router.core.following import Following
from xdp_router.core.hash_tables import HashTables
from xdp_router.core.roster import Roster
from xdp_router.core.selection import build_table


def made() -> tuple[Availability, Following]:
    """Of two backends, which are reached; no table is published."""
    web = service(2)
    backends = Availability()
    roster = Roster(backends.usable, lambda *_: 1)
    roster.apply((web,), EngineSettings())
    tables = HashTables((web,), backends.usable, build_table)
    backends.begin((1, 2), ())
    return backends, Following(backends, roster, tables)


def test_what_changes_is_told_once() -> None:
    """The word itself, whether XDP may go on with it, and a table for all that has changed."""
    backends, following = made()
    web = service(2)
    out: list[Command] = []
    drain = partial(backends.drain, 1, True)
    assert following.change(web, 1, drain, out, SetBackendDraining(1, True))
    assert out == [SetBackendDraining(1, True)], "it keeps what it has"
    assert not following.change(web, 1, drain, out, SetBackendDraining(1, True))
    assert following.change(web, 2, partial(backends.leave_out, 2, True), out)
    assert out[1:] == [SetBackendUp(2, False)]
    following.publish(web.id, 10**12, out)
    following.publish(web.id, 10**12, out)
    (table,) = out[2:]
    assert isinstance(table, PublishHashTable)


def test_of_a_service_that_is_gone_no_table_follows() -> None:
    """Its number may be another one's by then."""
    backends, following = made()
    out: list[Command] = []
    following.change(service(2), 2, partial(backends.reach, 2, False), out)
    following.forget(service(2).id)
    following.publish(service(2).id, 10**12, out)
    assert out == [SetBackendUp(2, False)]
