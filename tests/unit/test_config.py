# SPDX-License-Identifier: Apache-2.0
"""Configuration: what is accepted, and what an operator is told about the rest."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xdp_router.core.config import RouterConfig, Settings, config_from_flags, parse_config
from xdp_router.core.errors import ConfigError, XdpRouterError
from xdp_router.core.model import (
    NO_BACKEND,
    Backend,
    Endpoint,
    Forwarding,
    HealthSettings,
    Mode,
    Orphans,
    Probe,
    ProbeKind,
    Service,
)

FULL = """\
[router]
max_flows = 200_000
event_rate = 30000
probe_ports = "62000-62099"
heartbeat_stale = "0.2s"
flow_idle = "2h"
coalesce_window = "0s"

[[service]]
name = "web"
address = "198.18.100.1:80"
protocol = "tcp"
mode = "race"
forwarding = "nat"
fallback = "b2"
deadline = "20ms"
orphans = "hash"
event_rate = 1000

[[service.backend]]
name = "b1"
address = "198.18.1.2:8080"
weight = 3
[[service.backend]]
name = "b2"
address = "198.18.2.2:8080"

[[service]]
name = "db"
address = "198.18.100.1:5432"
[[service.backend]]
name = "db1"
address = "198.18.1.2:5432"
"""


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "router.toml")
    return str(caught.value).splitlines()


def service(extra: str = "", backend: str = "") -> str:
    """A valid file of 6 lines; ``extra`` comes as line 4, ``backend`` at the end."""
    return (
        '[[service]]\nname = "web"\naddress = "198.18.100.1:80"\n'
        f'{extra}\n[[service.backend]]\naddress = "198.18.1.2:8080"\n{backend}\n'
    )


def test_a_bad_address_is_no_name_to_choose() -> None:
    """The fallback's mistake does not offer a backend whose own address is one."""
    with pytest.raises(ConfigError, match=r"fallback: .* a backend of this service \(none\)"):
        parse_config(service("fallback = 'b9'").replace(":8080", ":0"), "router.toml")


def test_full_file_becomes_values() -> None:
    """Every key is taken over; backends are numbered through so that services have ranges."""
    web, db = Endpoint(0xC6126401, 80), Endpoint(0xC6126401, 5432)
    assert parse_config(FULL, "router.toml") == RouterConfig(
        services=(
            Service(
                id=0,
                name="web",
                endpoint=web,
                backends=(
                    Backend(0, "b1", Endpoint(0xC6120102, 8080), 0, 3),
                    Backend(1, "b2", Endpoint(0xC6120202, 8080), 0, 1),
                ),
                mode=Mode.RACE,
                forwarding=Forwarding.NAT,
                fallback=1,
                deadline_ns=20_000_000,
                orphans=Orphans.HASH,
                event_rate=1000,
                health=HealthSettings(),
            ),
            Service(
                1,
                "db",
                db,
                (Backend(2, "db1", Endpoint(0xC6120102, 5432), 1),),
                health=HealthSettings(),
            ),
        ),
        settings=Settings(
            max_flows=200_000,
            event_rate=30_000,
            probe_port_min=62_000,
            probe_port_max=62_099,
            heartbeat_stale_ns=200_000_000,
            flow_idle_ns=7_200_000_000_000,
            coalesce_window_ns=0,
        ),
    )


IPV6 = """\
[[service]]
address = "[2001:DB8:0::1]:443"
fallback = "[2001:db8::2]:8443"
[[service.backend]]
address = "[2001:db8::2]:8443"
"""


def test_ipv6_service() -> None:
    """An address has brackets; a name made from it has its one short form, and can be used."""
    (service6,) = parse_config(IPV6, "router.toml").services
    assert service6.name == "[2001:db8::1]:443/tcp"
    assert service6.endpoint == Endpoint(0x20010DB8 << 96 | 1, 443)
    assert service6.backends[0].endpoint == Endpoint(0x20010DB8 << 96 | 2, 8443)
    assert service6.fallback == 0


def test_families_do_not_mix_with_nat() -> None:
    """A backend of the other family is told with its line, whichever is which."""
    (line,) = problems(IPV6.replace("[2001:db8::2]", "198.18.1.2"))
    assert line == (
        "router.toml:5: service.backend.address: found 198.18.1.2:8443, no IPv6 address, expected "
        "an IPv6 address as the service's ([2001:db8::1]:443): forwarding 'nat' keeps the family"
    )
    (line,) = problems(service().replace("198.18.1.2", "[2001:db8::2]"))
    assert line.startswith(
        "router.toml:6: service.backend.address: found [2001:db8::2]:8080, no IPv4 address"
    )


def test_one_address_in_two_forms_is_one() -> None:
    """Duplicates are found however they are written."""
    again = '[[service.backend]]\naddress = "[2001:db8:0:0::2]:8443"\nname = "other"\n'
    (line,) = problems(IPV6 + again)
    assert "[2001:db8::2]:8443, the address of backend" in line


def test_ipv6_flags() -> None:
    """Flags take what the file takes; the same backend in another form is not a new name."""
    long = "[2001:db8:1111:2222:3333:4444:5555:6666]:65535"
    config = config_from_flags(
        [("[2001:db8::1]:443/tcp", [long]), ("[2001:db8::1]:80", [long.replace("db8", "0DB8")])]
    )
    names = [backend.name for service in config.services for backend in service.backends]
    assert names == [long, f"{long}@[2001:db8::1]:80"]
    assert [each.name for each in config.services] == [
        "[2001:db8::1]:443/tcp",
        "[2001:db8::1]:80/tcp",
    ]


def test_short_names_of_flags() -> None:
    """The service that a name tells of is in its short form."""
    backend = "[2001:db8::2]:8443"
    services = [("[2001:DB8::1]:443", [backend]), ("[2001:DB8::1]:80/tcp", [backend])]
    config = config_from_flags(services)
    assert config.services[1].backends[0].name == f"{backend}@[2001:db8::1]:80/tcp"


def test_longest_names_of_flags() -> None:
    """Two endpoints of the longest form do not fit in a name: the second service's number does."""
    long = "[2001:db8:1111:2222:3333:4444:5555:{}]:65535"
    backend = long.format(6666)
    services = [(f"{long.format(number)}/tcp", [backend]) for number in (7777, 8888)]
    config = config_from_flags(services)
    assert config.services[1].backends[0].name == f"{backend}@2"


def test_defaults() -> None:
    """What a file leaves out has the documented default."""
    config = parse_config(service(), "router.toml")
    assert config.settings == Settings()
    assert config.settings.flow_table_entries == 1_000_000
    (web,) = config.services
    assert (web.mode, web.fallback, web.deadline_ns) == (Mode.RACE, NO_BACKEND, 50_000_000)
    assert (web.orphans, web.event_rate) == (Orphans.RESET, 50_000)
    assert [backend.name for backend in web.backends] == ["198.18.1.2:8080"]


def test_services_of_udp() -> None:
    """One address may be a service of each protocol; QUIC is one of UDP that is said to be."""
    other = service("protocol = 'udp'\nprobe = 'icmp'\nquic = true", "name = 'other'")
    text = "[router]\nudp_idle = '90s'\n" + service() + other.replace('name = "web"\n', "")
    assert parse_config(text, "router.toml").settings.udp_idle_ns == 90_000_000_000
    web, quic = parse_config(text, "router.toml").services
    assert (web.endpoint.proto, web.quic, quic.endpoint.proto, quic.quic) == (6, False, 17, True)
    assert {backend.endpoint.proto for backend in quic.backends} == {17}
    assert quic.name == "198.18.100.1:80/udp"


def test_flags_of_udp() -> None:
    """A service by flag has the probe that every host answers."""
    config = config_from_flags([("198.18.100.1:53/udp", ["198.18.1.2:53"])])
    (backend,) = config.services[0].backends
    assert (backend.endpoint.proto, backend.probe) == (17, Probe(ProbeKind.ICMP))


def test_service_event_rate_is_the_default_of_services() -> None:
    """[router] service_event_rate holds for services that name no rate."""
    config = parse_config("[router]\nservice_event_rate = 7\n" + service(), "router.toml")
    assert config.services[0].event_rate == 7


def test_tie_window() -> None:
    """Down to none at all."""
    for text, wanted in (("50us", 50_000), ("0s", 0)):
        config = parse_config(f'[router]\ntie_window = "{text}"\n' + service(), "router.toml")
        assert config.settings.tie_window_ns == wanted


def test_flags_are_the_same_as_a_file() -> None:
    """--service with its --backends gives what the file would give, named by address."""
    config = config_from_flags(
        [
            ("198.18.100.1:80/tcp", ["198.18.1.2:8080", "198.18.2.2:8080"]),
            ("198.18.100.1:81", ["198.18.2.2:8080"]),
        ]
    )
    assert [s.name for s in config.services] == ["198.18.100.1:80/tcp", "198.18.100.1:81/tcp"]
    assert [[(b.id, b.name) for b in s.backends] for s in config.services] == [
        [(0, "198.18.1.2:8080"), (1, "198.18.2.2:8080")],
        [(2, "198.18.2.2:8080@198.18.100.1:81")],
    ]


@pytest.mark.parametrize(
    ("services", "mode", "expected"),
    [
        ([], "race", "--service: found none, expected at least one --service ADDR:PORT"),
        (
            [("198.18.100.1:80/tcp", [])],
            "race",
            "--backend: found none, expected at least one --backend ADDR:PORT",
        ),
        (
            [("198.18.100.1:80/sctp", ["198.18.1.2:80"])],
            "race",
            "--service: found 'sctp', expected 'tcp' or 'udp'",
        ),
        (
            [("198.18.100.1:80", ["198.18.1.2:80"]), ("198.18.100.1:81", ["198.18.1.2:81"])],
            "fast",
            "--mode: found 'fast', expected 'race' or 'snapshot' or 'inline'",
        ),
        (
            [("198.18.100.1:80", ["backend1:80"])],
            "race",
            "--backend: 'backend1' is not an IP address, expected one as 198.18.1.2 or 2001:db8::2",
        ),
    ],
)
def test_bad_flags(services: list[tuple[str, list[str]]], mode: str, expected: str) -> None:
    """A problem of the command line names the flag, and is told once."""
    with pytest.raises(ConfigError) as caught:
        config_from_flags(services, mode)
    assert str(caught.value) == f"command line: {expected}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            service("mode = 'fast'"),
            "4: service.mode: found 'fast', expected 'race' or 'snapshot' or 'inline'",
        ),
        (
            service("forwarding = 'srv6'"),
            "4: service.forwarding: forwarding 'srv6' is not available in this version: "
            "use 'nat' or 'fullnat' or 'dsr' or 'ipip'",
        ),
        (
            service("protocol = 'sctp'"),
            "4: service.protocol: found 'sctp', expected 'tcp' or 'udp'",
        ),
        (
            service("quic = true"),
            '4: service.quic: found true, expected protocol = "udp" beside it, which QUIC runs '
            "over",
        ),
        (
            service("protocol = 'udp'\nprobe = 'icmp'\nquic = 1"),
            "6: service.quic: found the number 1, expected true or false",
        ),
        (
            service("orphans = 'drop'"),
            "4: service.orphans: found 'drop', expected 'reset' or 'hash'",
        ),
        (
            service("deadline = 50"),
            "4: service.deadline: found the number 50, expected a duration "
            'from "1ms" to "10s", as "50ms", "2s" or "1h"',
        ),
        (
            service("deadline = '11s'"),
            "4: service.deadline: found '11s', expected a duration from "
            '"1ms" to "10s", as "50ms", "2s" or "1h"',
        ),
        (
            service("deadline = '1.0000005ms'"),
            "4: service.deadline: found '1.0000005ms', expected a duration "
            'from "1ms" to "10s", as "50ms", "2s" or "1h"',
        ),
        (
            service("event_rate = true"),
            "4: service.event_rate: found the boolean true, expected a "
            "whole number from 1 to 10000000",
        ),
        (
            service("fallback = 'b9'"),
            "4: service.fallback: found 'b9', expected a backend of this "
            "service ('198.18.1.2:8080')",
        ),
        (
            service("colour = 1"),
            "4: service.colour: unknown key, expected one of: address, "
            "affinity, affinity_time, allow, backend, candidates, control_arm, control_arm_by, "
            "deadline, deny, event_rate, except_ports, fallback, forwarding, handler, "
            "health, health_fall, health_hold, health_hold_max, health_interval, health_rise, "
            "icmp_echo, listener, max_connections, mode, name, orphans, "
            "probe, probe_answer, probe_host, probe_interval, probe_path, probe_payload, "
            "probe_status, protocol, quic, reset_on_death, score, scrape, slow_start, "
            "snapshot_age, "
            "stateless, tunnel_source",
        ),
        (
            service("", "weight = 0"),
            "7: service.backend.weight: found 0, expected a whole number from 1 to 1000",
        ),
        (
            service("", "name = 'a b'"),
            "7: service.backend.name: found 'a b', expected a name of 1 to 64 letters, digits "
            "and _ . : / @ - [ ], with a letter, a digit or [ first",
        ),
        (
            service() + "[router]\nmax_flows = 1",
            "9: router.max_flows: found 1, expected a whole number from 1000 to 16000000",
        ),
        (
            service() + "[router]\nprobe_ports = '9-8'",
            "9: router.probe_ports: found '9-8', "
            'expected a port range within 1024 to 65535, low end first, as "61000-61999"',
        ),
        (
            service() + "[router]\nheartbeat_stale = '3s'\nheartbeat_interval = '300ms'",
            "10: router.heartbeat_interval: found '300ms', expected a duration from \"1ms\" to "
            '"250ms", as "50ms", "2s" or "1h"',
        ),
        (
            service() + "[router]\nheartbeat_interval = '50ms'",
            "8: router.heartbeat_stale: found "
            "100ms, expected at least 3 times heartbeat_interval (50ms)",
        ),
        (
            "[[service]]\naddress = '198.18.100.1:80'\n",
            "1: service.backend: found none, expected at least one [[service.backend]]",
        ),
        ("[service]\n", "1: service: found a table, expected tables, [[service]]"),
        ("# nothing\n", "1: service: found none, expected at least one [[service]]"),
        ("[[service]\n", "1: not valid TOML: Expected ']]' at the end of an array declaration"),
    ],
)
def test_one_problem_is_told_with_its_line(text: str, expected: str) -> None:
    """The message has file, line, key, what was found and what was expected."""
    assert problems(text) == [f"router.toml:{expected}"]


def test_duplicates_are_refused() -> None:
    """Names are unique in the router, addresses of services too, backends within their service."""
    text = FULL.replace('"db"', '"web"').replace("100.1:5432", "100.1:80")
    text = text.replace('"db1"', '"b1"').replace("198.18.2.2", "198.18.1.2")
    assert problems(text) == [
        "router.toml:26: service.backend.address: found 198.18.1.2:8080, the address of backend "
        "'b1' as well, expected each backend of a service once (weight gives it a larger share)",
        "router.toml:29: service.name: found 'web', expected a name that no other service has",
        "router.toml:30: service.address: found 198.18.100.1:80, the address of service 'web' as "
        "well, expected an address that no other service has",
        "router.toml:32: service.backend.name: found 'b1', a backend of service 'web' as well, "
        "expected a name that no other backend of the router has, because commands use it",
    ]


def test_a_service_cannot_be_its_own_backend() -> None:
    """A backend address that is a service's would send packets round in a loop."""
    (line,) = problems(FULL.replace("198.18.1.2:5432", "198.18.100.1:80"))
    assert line.startswith("router.toml:33: service.backend.address: found 198.18.100.1:80, the ")


def test_error_carries_the_first_problem() -> None:
    """Callers find path, line, key and expectation of the first problem as attributes."""
    with pytest.raises(XdpRouterError) as caught:
        parse_config(service("deadline = '0s'\nmode = 'x'"), "a.toml")
    error = caught.value
    assert isinstance(error, ConfigError)
    assert (error.path, error.line, error.key) == ("a.toml", 4, "service.deadline")
    assert error.expected.startswith("a duration from")
    assert [problem.line for problem in error.problems] == [4, 5]


PIECES = st.sampled_from(
    [
        *("[[service]]", "[[service.backend]]", "[service]", "[router]", "\n", "\r\n", " ", "."),
        *("name", "address", "weight", "backend", "mode", "deadline", "'a.b'", '"\\""', "=", ","),
        *("{", "}", "[", "]", "# x", "true", "1", "-2.5", "1979-05-27", "inf", '"198.18.1.2:80"'),
        *('"50ms"', "'race'", '"""', "'''", "'", '"', "\\", "é", "\x00", "\ufeff"),
        *("x = " + "9" * 5000, "0x" + "f" * 5000, "weight = ", "-", '"' + "9" * 5000 + 's"'),
        *("x = " + "[" * 1000, "x = " + "[" * 400 + "]" * 400, "x = " + "{a=" * 1000),
    ]
)
LINES = st.lists(
    st.sampled_from(
        [
            *("[[service]]", "[[service.backend]]", "[router]", "[service.x]", "# [[service]]"),
            *("name = 'a'", "name = 1", 'address = "198.18.1.2:80"', "weight = 1e3", "x.y = 1"),
            *(
                "backend = [{name = 'b', address = '198.18.1.3:1'}, # c\n  {a.b = 1}\n]",
                "mode = ''",
            ),
            *('text = """\n[[service]]\n"""', "deadline = 00:00:01", "weight = nan"),
        ]
    )
)


@given(st.one_of(st.lists(PIECES).map("".join), LINES.map("\n".join), st.text()))
@settings(max_examples=400)
def test_any_text_gives_a_configuration_or_the_documented_error(text: str) -> None:
    """Nothing but ConfigError comes out of a bad file, and it always has a line of the file."""
    try:
        parse_config(text, "router.toml")
    except ConfigError as error:
        for problem in error.problems:
            assert 1 <= problem.line <= text.count("\n") + 1


MANY = "9" * 5000


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"event_rate = {MANY}", "a number has too many digits"),
        (f"event_rate = 0x{'f' * 5000}", "found a number of more than 4000 digits, expected a"),
        (f"event_rate = [0x{'f' * 5000}]", "found an array, expected a whole number"),
        (f"deadline = '{MANY}s'", "expected a duration"),
        (f"deadline = '1.{MANY}s'", "expected a duration"),
        (f"orphans = '{MANY}'", "expected 'reset' or 'hash'"),
        (f"colour = {'[' * 3000}{']' * 3000}", "nested too deeply"),
        (f"colour = {'{a=' * 3000}1{'}' * 3000}", "nested too deeply"),
        (f"colour = {'[' * 3000}", "nested too deeply"),
    ],
)
def test_values_that_are_far_too_much(line: str, expected: str) -> None:
    """Refused with the line like any other, and with a message that can be read."""
    (message,) = problems(service(line))
    assert message.startswith("router.toml:4: ")
    assert expected in message
    assert len(message) < 500


@pytest.mark.parametrize("levels", range(20, 700, 20))
def test_any_depth_is_told_with_its_line(levels: int) -> None:
    """Also where reading the values goes well and looking for the lines does not, or only just."""
    for line in (
        f"colour = {'[' * levels}{']' * levels}",
        f"colour = {'{a=' * levels}1{'}' * levels}",
    ):
        (message,) = problems(service(line))
        assert message.startswith("router.toml:4: ")


def test_a_byte_order_mark_is_skipped() -> None:
    """Editors of other systems put one at the beginning of a file."""
    assert parse_config("\ufeff" + FULL, "router.toml") == parse_config(FULL, "router.toml")
