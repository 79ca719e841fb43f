# SPDX-License-Identifier: Apache-2.0
"""Whether background probes can be as many as is asked for."""

from __future__ import annotations

from dataclasses import replace

from tests.support.background import service
from tests.support.playbook import MS
from xdp_router.core.model import Mode, Probe, ProbeKind
from xdp_router.core.probe_load import MOST_PER_S, overloads


def test_what_can_be_kept_is_not_told() -> None:
    """Three backends each 10 ms; and races, whatever their interval would be."""
    web = service(1, 2, 3)
    assert not list(overloads([web], 1_000))
    raced = replace(web, mode=Mode.RACE, probe_interval_ns=MS)
    assert not list(overloads([raced], 100))
    assert not list(overloads([], 100))


def test_more_than_one_server_is_to_bear() -> None:
    """The service, the server, both figures, and the mend; others are counted."""
    (found,) = overloads([service(1, 2, probe_interval_ns=MS)], 500)
    assert found.text.startswith(
        "probe_interval of service s0 is 1000 probes a second to 198.19.0.1:8080, and probe_rate "
        "allows 500, races included, and so with 1 other servers: those beyond are not sent"
    )
    assert found.mend == "probe_rate = 2000, or a longer probe_interval"


def test_kinds_of_probes_to_one_server_add_up() -> None:
    """Its budget is one; the same kind, of two services, is asked once."""
    web, shop = service(1), service(1, number=1)
    assert not list(overloads([web, shop], 100))
    backend = replace(shop.backends[0], probe=Probe(ProbeKind.SYN, 8080))
    (found,) = overloads([web, replace(shop, backends=(backend,))], 100)
    assert "is 200 probes a second" in found.text


def test_more_than_the_daemon_can_send() -> None:
    """How much longer intervals will be."""
    many = service(*range(1, 301))
    (found,) = overloads([many], 1_000)
    assert found.text.startswith(
        "services in mode 'snapshot' ask for 30000 probes of 300 servers and 20 looks at tables a "
        "second, which is 3.1 times what the daemon has time for"
    )
    assert MOST_PER_S == 10_000


def test_tables_are_work_too() -> None:
    """Thousands of services may share a few servers."""
    many = [service(1, 2, number=number) for number in range(2_000)]
    (found,) = overloads(many, 1_000)
    assert "200 probes of 2000 servers" not in found.text
    assert "40000 looks at tables a second" in found.text
    calm = [replace(each, probe_interval_ns=500 * MS, snapshot_age_ns=5_000 * MS) for each in many]
    assert not list(overloads(calm, 1_000))
