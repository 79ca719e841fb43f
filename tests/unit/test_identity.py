# SPDX-License-Identifier: Apache-2.0
"""Ids over a change of the configuration, while flows name some."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xdp_router.core.config import RouterConfig, config_from_flags
from xdp_router.core.identity import DoesNotFit, Known, renumber, vanished
from xdp_router.core.model import NO_BACKEND, Endpoint, Forwarding

NOTHING = Known({}, {}, 8, 8)


def config(**services: str) -> RouterConfig:
    """One service a keyword: ``web="123"`` has backends 198.19.0.1 to .3."""
    ports = {"web": 80, "api": 81, "db": 82}
    return config_from_flags(
        [
            (f"198.18.100.1:{ports[name]}", [f"198.19.0.{last}:8080" for last in backends])
            for name, backends in services.items()
        ]
    )


def known_after(made: RouterConfig, service_room: int = 8, backend_room: int = 8) -> Known:
    """What the maps hold when a configuration was written."""
    return Known(
        {service.endpoint: service.id for service in made.services},
        {
            backend.id: (service.id, backend.endpoint)
            for service in made.services
            for backend in service.backends
        },
        service_room,
        backend_room,
    )


def ids(made: RouterConfig) -> dict[str, tuple[int, dict[str, int]]]:
    """Service id and backend ids, by port and last digit."""
    return {
        str(service.endpoint.port): (
            service.id,
            {str(backend.endpoint.addr & 0xFF): backend.id for backend in service.backends},
        )
        for service in made.services
    }


def test_without_a_past_nothing_changes() -> None:
    """A first configuration keeps the numbers that it was read with."""
    made = config(web="12", api="1")
    assert renumber(made, NOTHING, ()) == made


def test_what_is_still_there_keeps_its_id_in_any_order() -> None:
    """Services and backends are told by address, wherever the file has them."""
    before = known_after(config(web="123", api="12"))
    assert ids(renumber(config(api="21", web="312"), before, ())) == {
        "80": (0, {"1": 0, "2": 1, "3": 2}),
        "81": (1, {"1": 3, "2": 4}),
    }


def test_an_id_that_flows_use_goes_to_nobody_else() -> None:
    """The vanished backend keeps it; what is new gets one that was never used."""
    before = known_after(config(web="12"))
    after = config(web="23")
    assert vanished(after, before) == {0}
    assert ids(renumber(after, before, {0})) == {"80": (0, {"2": 1, "3": 2})}


def test_free_ids_that_were_used_come_last() -> None:
    """They are taken only when no other is left."""
    before = known_after(config(web="12"), backend_room=3)
    assert ids(renumber(config(web="234"), before, ())) == {"80": (0, {"2": 1, "3": 2, "4": 0})}


def test_a_vanished_service_keeps_its_id_while_its_flows_live() -> None:
    """Its flows are listed under its name; without flows the id is free again."""
    before = known_after(config(web="1", api="1"), service_room=2)
    after = config(api="1", db="1")
    assert ids(renumber(after, before, ()))["82"][0] == 0
    with pytest.raises(DoesNotFit, match=r"room for 2 services.*detach"):
        renumber(after, before, {0})


def test_the_same_address_in_two_services_is_two_backends() -> None:
    """A backend belongs to its service: leaving one of them does not move the other's id."""
    before = known_after(config(web="1", api="1"))
    after = config(api="1")
    assert vanished(after, before) == {0}
    assert ids(renumber(after, before, {0})) == {"81": (1, {"1": 1})}


def test_too_many_backends_are_refused() -> None:
    """The message says how many there is room for, and the mend."""
    with pytest.raises(DoesNotFit, match=r"room for 2 backends.*detach"):
        renumber(config(web="123"), known_after(config(web="12"), backend_room=2), ())


def test_the_fallback_follows_its_backend() -> None:
    """It names the same backend by its new id; none stays none."""
    made = config(web="12")
    (web,) = made.services
    from dataclasses import replace

    with_fallback = replace(made, services=(replace(web, fallback=1),))
    before = known_after(config(web="21"))
    assert renumber(with_fallback, before, ()).services[0].fallback == 0
    assert renumber(made, before, ()).services[0].fallback == NO_BACKEND


DIGITS = st.sets(st.integers(1, 6), min_size=1, max_size=4).map(lambda s: "".join(map(str, s)))
CONFIGS = st.dictionaries(st.sampled_from(["web", "api", "db"]), DIGITS, min_size=1).map(
    lambda services: config(**services)
)


@given(first=CONFIGS, second=CONFIGS, data=st.data())
def test_no_id_ever_means_two_backends(
    first: RouterConfig, second: RouterConfig, data: st.DataObject
) -> None:
    """Kept ones keep theirs, and what flows use is nobody else's, whatever the change."""
    before = known_after(first, 16, 64)
    gone = vanished(second, before)
    in_use = data.draw(st.sets(st.sampled_from(sorted(gone)))) if gone else set()
    after = renumber(second, before, in_use)
    now: dict[int, tuple[Endpoint, Endpoint]] = {}
    for service in after.services:
        for backend in service.backends:
            assert backend.id not in now
            assert backend.service == service.id
            now[backend.id] = (service.endpoint, backend.endpoint)
    assert not set(now).intersection(in_use)
    address = {number: endpoint for endpoint, number in before.services.items()}
    for number, (service_id, endpoint) in before.backends.items():
        if number not in gone:
            assert now[number] == (address[service_id], endpoint)
    assert not {s.id for s in after.services if s.endpoint not in before.services}.intersection(
        before.backends[each][0] for each in in_use
    )


def test_another_way_to_a_backend_makes_it_another() -> None:
    """Flows go on as they began; nat and fullnat are one way, for the flows' entries tell them."""
    made = config(web="12")
    (web,) = made.services
    direct = replace(made, services=(replace(web, forwarding=Forwarding.DSR),))
    before = known_after(made)
    assert ids(renumber(direct, before, {0})) == {"80": (0, {"1": 2, "2": 3})}
    assert vanished(direct, before) == {0, 1}
    was = replace(before, methods={0: Forwarding.DSR, 1: Forwarding.IPIP})
    assert ids(renumber(direct, was, ())) == {"80": (0, {"1": 0, "2": 2})}
    full = replace(made, services=(replace(web, forwarding=Forwarding.FULLNAT),))
    assert vanished(full, before) == frozenset()


def test_room_for_what_services_leave_out() -> None:
    """Ports that are left out, and echo, have places in the same map: told before anything."""
    made = config(web="1")
    (web,) = made.services
    wide = replace(
        web,
        endpoint=replace(web.endpoint, port=0, ranged=True, last=65_535),
        except_ports=((22, 22), (80, 90)),
        icmp_echo=True,
    )
    after = replace(made, services=(wide,))
    renumber(after, replace(NOTHING, entry_room=4), ())
    with pytest.raises(DoesNotFit, match=r"room for 3 addresses.*has 4: .*detach"):
        renumber(after, replace(NOTHING, entry_room=3), ())
