# SPDX-License-Identifier: Apache-2.0
"""What differs between two configurations, in the words of the file."""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import replace
from typing import Any

import pytest

from xdp_router.core.changes import (
    FIXED,
    Kind,
    backend_keys,
    diff,
    settings_keys,
)
from xdp_router.core.config import RouterConfig, Settings, parse_config
from xdp_router.core.identity import Known, renumber, vanished
from xdp_router.core.model import (
    Backend,
    Endpoint,
    Forwarding,
    HealthSettings,
    KernelHandoff,
    Mode,
    Orphans,
    Probe,
    ProbeKind,
    Reading,
    ScoreWeights,
    Scrape,
    Series,
    Service,
    SourcePrefix,
)

TEXT = """
[[service]]
name = "web"
address = "198.18.100.1:80"
fallback = "b1"
[[service.backend]]
name = "b1"
address = "198.19.1.2:8080"
[[service.backend]]
name = "b2"
address = "198.19.2.2:8080"
weight = 3
[[service]]
name = "api"
address = "198.18.100.1:81"
deny = ["198.18.7.0/24"]
[[service.backend]]
name = "a1"
address = "198.19.1.2:8081"
vlan = 7
"""
CONFIG = parse_config(TEXT, "router.toml")


def after(old: RouterConfig, text: str) -> RouterConfig:
    """What ``text`` says, with the ids of what is there already."""
    new = parse_config(text, "router.toml")
    known = Known(
        {service.endpoint: service.id for service in old.services},
        {
            each.id: (each.service, each.endpoint)
            for service in old.services
            for each in service.backends
        },
        64,
        64,
        {each.id: each.forwarding for service in old.services for each in service.backends},
    )
    return renumber(new, known, vanished(new, known))


def lines(text: str) -> list[str]:
    """What makes ``text`` of TEXT."""
    return [str(line) for line in diff(CONFIG, after(CONFIG, text)).lines]


def test_nothing_differs_from_itself() -> None:
    """Nor does the order of services and backends matter, or how a value is written."""
    assert not diff(CONFIG, CONFIG)
    head, web, api = TEXT.split("[[service]]\n")
    assert lines(f"{head}[[service]]\n{api}[[service]]\n{web}") == []
    assert (
        lines(
            TEXT.replace(
                '[[service]]\nname = "web"', '[[service]]\ndeadline = "50000us"\nname = "web"'
            )
        )
        == []
    )


def test_each_kind_of_change_is_a_line() -> None:
    """Backends by their service; of what is added, what is not as it would be unsaid."""
    text = TEXT.replace('name = "b2"\naddress = "198.19.2.2:8080"', 'address = "198.19.3.2:8080"')
    text = text.replace(
        'deny = ["198.18.7.0/24"]', 'allow = ["198.18.0.0/16"]\naffinity = "source"'
    )
    text = text.replace("vlan = 7", "weight = 2")
    text = f'[router]\nevent_rate = 7\nnat_ports = "20000-20999"\n{text}'
    assert lines(text) == [
        "~ event_rate 50000 -> 7",
        "~ nat_ports 10000-29999 -> 20000-20999",
        "+ backend 198.19.3.2:8080 of web: address 198.19.3.2:8080, weight 3",
        "- backend b2 of web: its connections go on until they end",
        "~ service api: affinity none -> source, "
        "allow none -> 198.18.0.0/16, deny 198.18.7.0/24 -> none",
        "~ backend a1 of api: weight 1 -> 2, vlan 7 -> as it came",
    ]


def test_a_service_with_another_address_is_another_one() -> None:
    """As over a restart: what connects to the old address has the old one until it ends."""
    found = lines(TEXT.replace("198.18.100.1:81", "198.18.100.1:82"))
    assert found[0] == ("+ service api: address 198.18.100.1:82, protocol tcp, deny 198.18.7.0/24")
    assert found[1] == "+ backend a1 of api: address 198.19.1.2:8081, vlan 7"
    assert found[2:] == [
        "- backend a1 of api: its connections go on until they end",
        "- service api: its connections go on until they end",
    ]


ADDED = """
[[service]]
address = "198.18.100.2:80"
{more}
[[service.backend]]
address = "198.19.1.2:8082"
{of_backend}
"""


@pytest.mark.parametrize(
    ("more", "of_backend", "service", "backend"),
    [
        ("", "", "", ""),
        ('name = "new"\nmode = "snapshot"', "", ", mode snapshot", ""),
        ('deadline = "50ms"\nhealth_rise = 2', "weight = 1", "", ""),  # as they would be anyway
        ('probe_interval = "1s"', "", ", probe_interval 1s", ""),  # the age follows from it
        ("health = false", "", ", health false", ""),
        ('affinity = "source"', "", ", affinity source", ""),
        (
            'affinity = "source"\naffinity_time = "1m"',
            "",
            ", affinity source, affinity_time 1m",
            "",
        ),
        ('scrape = { preset = "vllm" }', "", ", scrape vllm", ""),
        ("", 'probe = "http"', "", ", probe http"),
        ("", 'probe = "http"\nprobe_path = "/x"', "", ", probe http, probe_path /x"),
        (
            "score = { rtt = 3, queue = 1.4 }",
            "",
            ", score.rtt 3, score.queue 1.4 "
            "(in parts of 1: rtt 0.625 ttft 0.0417 cache 0.0417 queue 0.292 usage 0)",
            "",
        ),
    ],
)
def test_of_what_is_added_nothing_is_told_that_nobody_said(
    more: str, of_backend: str, service: str, backend: str
) -> None:
    """No default, and no key of something that is not there."""
    found = lines(TEXT + ADDED.format(more=more, of_backend=of_backend))
    name = "new" if "new" in more else "198.18.100.2:80/tcp"
    assert found == [
        f"+ service {name}: address 198.18.100.2:80, protocol tcp{service}",
        f"+ backend 198.19.1.2:8082 of {name}: address 198.19.1.2:8082{backend}",
    ]


def test_event_rates_are_those_of_the_router_unless_said() -> None:
    """A service that is added has the router's, which is no word of its own."""
    text = "[router]\nservice_event_rate = 7\n"
    found = lines(text + TEXT + ADDED.format(more="", of_backend=""))
    assert found[0] == "~ service_event_rate 50000 -> 7"
    assert found[3] == "+ service 198.18.100.2:80/tcp: address 198.18.100.2:80, protocol tcp"


def set_on_web(before: str, now: str) -> list[str]:
    """What is told when the first service says ``now`` in the place of ``before``."""

    def config(said: str) -> str:
        return TEXT.replace('name = "web"', f'name = "web"\n{said}')

    old = after(CONFIG, config(before))
    return [str(line) for line in diff(old, after(old, config(now))).lines]


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ("", "health = false", "health true -> false"),
        ("health = false", "", "health false -> true"),
        (
            "health = false",
            'health_rise = 5\nhealth_interval = "1s"',
            "health false -> true, health_rise 5",
        ),
        ("", 'scrape = { preset = "vllm", path = "/m" }', "scrape none -> vllm, scrape.path /m"),
        ('scrape = { preset = "vllm" }', "", "scrape vllm -> none"),
        ('affinity = "source"', "", "affinity source -> none"),
        (
            "",
            'affinity = "source"\naffinity_time = "1m"',
            "affinity none -> source, affinity_time 1m",
        ),
        (
            "",
            "score = { rtt = 3, queue = 1 }",
            "score.rtt 0.4 -> 3, score.queue 0.2 -> 1 "
            "(in parts of 1: rtt 0.682 ttft 0.0455 cache 0.0455 queue 0.227 usage 0)",
        ),
        ("", "score = { rtt = 0.3, queue = 0.3 }", "score.rtt 0.4 -> 0.3, score.queue 0.2 -> 0.3"),
        ("score = { rtt = 3 }", "", "score.rtt 3 -> 0.4"),
        ("score = { rtt = 3 }", 'score = { rtt = 3, age = "9s" }', "score.age 10s -> 9s"),
        ("", 'probe_interval = "1s"', "probe_interval 10ms -> 1s, snapshot_age 100ms -> 10s"),
    ],
)
def test_what_was_set_is_told_as_it_was_said(before: str, now: str, told: str) -> None:
    """And what it means, where that is something else; what went with it is not told."""
    assert set_on_web(before, now) == [f"~ service web: {told}"]


def test_how_weights_count_is_there_for_programs() -> None:
    """As a key of its own."""
    old = after(CONFIG, TEXT)
    text = TEXT.replace('name = "web"', 'name = "web"\nscore = { rtt = 3, queue = 1 }')
    (line,) = diff(old, after(old, text)).lines
    keys = {key: (before, now) for key, before, now in line.keys}
    assert keys["score.rtt"] == ("0.4", "3")
    assert keys["score"][1] == "rtt 0.682 ttft 0.0455 cache 0.0455 queue 0.227 usage 0"


def test_another_kind_of_probe_brings_its_keys() -> None:
    """Those of HTTP that are said; none of them when it goes."""
    text = TEXT.replace('name = "b1"', 'name = "b1"\nprobe = "http"\nprobe_host = "x"')
    assert lines(text) == ["~ backend b1 of web: probe syn -> http, probe_host x"]
    old = after(CONFIG, text)
    found = [str(line) for line in diff(old, after(old, TEXT)).lines]
    assert found == ["~ backend b1 of web: probe http -> syn"]


def test_another_method_may_mean_other_backends() -> None:
    """Flows of a rewriting method and those of dsr cannot share a number."""
    wide = TEXT.replace('name = "api"', 'name = "api"\nforwarding = "dsr"').replace(":8081", ":81")
    before = after(CONFIG, TEXT.replace(":8081", ":81"))
    found = [str(line) for line in diff(before, after(before, wide)).lines]
    assert found[0] == "~ service api: forwarding nat -> dsr"
    assert [line.split(":")[0] for line in found[1:]] == [
        "+ backend a1 of api",
        "- backend a1 of api",
    ]
    assert lines(TEXT.replace('name = "api"', 'name = "api"\nforwarding = "fullnat"')) == [
        "~ service api: forwarding nat -> fullnat"
    ]


def test_what_cannot_change_is_refused_with_its_mend() -> None:
    """All of it at once; the keys are those of the file."""
    assert FIXED.keys() <= settings_keys(Settings()).keys()
    text = f'[router]\nmax_flows = 2000\nprobe_ports = "62000-62999"\nevent_rate = 9\n{TEXT}'
    first, second = diff(CONFIG, after(CONFIG, text)).refused
    assert first.startswith(
        "max_flows 500000 -> 2000: tables keep their size while it runs: restart"
    )
    assert second == (
        "probe_ports 61000-61999 -> 62000-62999: restart the daemon with --persist: "
        "connections go on"
    )
    assert diff(CONFIG, after(CONFIG, f"[router]\nevent_rate = 9\n{TEXT}")).refused == []


OTHER: dict[str, Any] = {
    "metrics": ("127.0.0.1", 9850),
    "control_arm_by": Mode.HASH,
    "name": "other",
    "mode": Mode.SNAPSHOT,
    "score": ScoreWeights(1, 0, 0, 0),
    "score_said": ScoreWeights(2, 0, 0, 0),
    "forwarding": Forwarding.FULLNAT,
    "fallback": CONFIG.services[0].backends[1].id,
    "orphans": Orphans.HASH,
    "except_ports": ((5, 6),),
    "sources": (SourcePrefix(0xC6120000, 16, True),),
    "tunnel_source": 0xC612C800,
    "probe": Probe(ProbeKind.UDP, payload=b"x"),
    "vlan": 9,
    "scrape": Endpoint(0xC6130102, 9100),
    "kernel_handoff": KernelHandoff.OFF,
    "health": HealthSettings(fall=5),
    "listener": "web",
}
"""Another value of fields of which none can be made of the first."""


def other_value(whose: Any, field: str, value: Any) -> Any:
    """Of the same type."""
    if isinstance(whose, Service) and field == "scrape":
        return Scrape((("queue", (Reading((Series("depth"),)),)),))
    if field in OTHER:
        return OTHER[field]
    return not value if isinstance(value, bool) else value + 1


SAID = [
    *((CONFIG.settings, each.name) for each in dataclasses.fields(Settings)),
    *((CONFIG.services[0], each.name) for each in dataclasses.fields(Service)),
    *((CONFIG.services[0].backends[0], each.name) for each in dataclasses.fields(Backend)),
]
ELSEWHERE = {
    (Service, "id"),
    (Service, "endpoint"),
    (Service, "backends"),
    (Backend, "id"),
    (Backend, "endpoint"),
    (Backend, "service"),
    (Backend, "forwarding"),
    (Service, "tunnel_bits"),
}
"""What is a line of its own, or said by another field."""


@pytest.mark.parametrize(
    ("whose", "field"),
    SAID,
    ids=lambda each: getattr(each, "name", each) if not isinstance(each, Settings) else "router",
)
def test_no_field_changes_in_silence(whose: Any, field: str) -> None:
    """Whatever a configuration may say is in the diff when it is another."""
    if (type(whose), field) in ELSEWHERE:
        return
    other = replace(whose, **{field: other_value(whose, field, getattr(whose, field))})
    web, api = CONFIG.services
    if isinstance(other, Settings):
        new = replace(CONFIG, settings=other)
    elif isinstance(other, Service):
        new = replace(CONFIG, services=(other, api))
    else:
        new = replace(CONFIG, services=(replace(web, backends=(other, *web.backends[1:])), api))
    line = diff(CONFIG, new).lines[-1]  # a fallback's name is its service's, too
    assert line.kind is Kind.CHANGED
    assert len(line.keys) >= 1
    for key, before, now in line.keys:
        assert key
        assert before != now


@pytest.mark.parametrize("field", [each.name for each in dataclasses.fields(Probe)])
def test_no_part_of_a_probe_changes_in_silence(field: str) -> None:
    """Each of them is a key of its own."""
    others: dict[str, Any] = {
        "kind": ProbeKind.ICMP, "payload": b"x", "answer": b"x", "path": "/x", "host": "x",
        "status": (200, 200), "port": 9,
    }  # fmt: skip
    backend = CONFIG.services[0].backends[0]
    one = replace(backend, probe=Probe(ProbeKind.HTTP))
    other = replace(backend, probe=replace(one.probe, **{field: others[field]}))
    assert backend_keys(one) != backend_keys(other)


def test_enums_are_shown_by_their_word() -> None:
    """Not by the number that they have in the maps."""
    shown = settings_keys(Settings())
    assert shown["kernel_handoff"] == "check"
    assert not any(isinstance(each, enum.Enum) for each in shown.values())
