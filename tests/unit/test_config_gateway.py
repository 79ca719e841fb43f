# SPDX-License-Identifier: Apache-2.0
"""The tables of the gateway: each key, what it is without, and what is said of a wrong value."""

from __future__ import annotations

from typing import Any

import pytest

from xdp_router.core.config import parse_config
from xdp_router.core.config_gateway import require_services
from xdp_router.core.errors import ConfigError
from xdp_router.core.listeners import (
    DEFAULT_SCORES,
    Certificate,
    GatewayConfig,
    Listener,
    ListenerBackend,
    ListenerKind,
    Policy,
    ProbeWay,
    RaceSettings,
    Route,
    SocketAddress,
    TenantLimits,
)
from xdp_router.core.model import Mode, ScoreWeights

MS, S = 10**6, 10**9
SERVICE = (
    '[[service]]\naddress = "198.18.100.1:80"\n[[service.backend]]\naddress = "198.18.1.2:80"\n'
)


def document(
    listener: str = "",
    *,
    kind: str = "llm",
    gateway: str = "",
    tables: str = "",
    backend: str = "",
    address: str = "198.18.0.1:443",
) -> str:
    """One listener with backends b1 and b2; further lines of the tables, further tables."""
    return (
        f'[gateway]\n{gateway}\n[[listener]]\naddress = "{address}"\ntype = "{kind}"\n{listener}\n'
        f'{tables}\n[[listener.backend]]\nname = "b1"\naddress = "127.0.0.1:8000"\n{backend}\n'
        '[[listener.backend]]\nname = "b2"\naddress = "[2001:db8::2]:8000"\n'
    )


def read(*args: Any, **kwargs: Any) -> Listener:
    """The listener."""
    (listener,) = parse_config(document(*args, **kwargs), "x").gateway.listeners
    return listener


def problems(text: str) -> list[tuple[str, str]]:
    """Key and text of each."""
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "x")
    return [(each.key, each.detail) for each in caught.value.problems]


def complaint(*args: Any, **kwargs: Any) -> str:
    """The only problem: ``key: text``."""
    ((key, detail),) = problems(document(*args, **kwargs))
    return f"{key}: {detail}"


def test_nothing_is_said_of_it() -> None:
    """A file of services alone has no gateway; one of listeners alone needs no service."""
    assert parse_config(SERVICE, "x").gateway == GatewayConfig()
    config = parse_config(document(), "x")
    assert config.services == ()
    assert len(config.gateway.listeners) == 1
    assert len(parse_config(SERVICE + document(), "x").gateway.listeners) == 1


def test_who_needs_a_service_says_so() -> None:
    """What the router reads must have one; the text says who serves the rest."""
    with pytest.raises(ConfigError, match=r"x: service: .*\[\[service\]\].*xdp-routerd gateway"):
        require_services((), "x")
    require_services(parse_config(SERVICE, "x").services, "x")


def test_defaults_of_a_listener() -> None:
    """Those of the documentation; what depends on the type."""
    backends = (
        ListenerBackend("b1", SocketAddress("127.0.0.1", 8000)),
        ListenerBackend("b2", SocketAddress("2001:db8::2", 8000)),
    )
    address = SocketAddress("198.18.0.1", 443)
    race = RaceSettings(retries=1)
    for kind, probe, body in (
        (ListenerKind.TLS, ProbeWay.CONNECT, 0),
        (ListenerKind.HTTP, ProbeWay.HEAD, 0),
        (ListenerKind.LLM, ProbeWay.HEAD, 4 << 20),
    ):
        assert read(kind=kind.value) == Listener(
            "198.18.0.1:443",
            kind,
            address,
            backends,
            score=DEFAULT_SCORES[kind],
            race=race,
            probe=probe,
            max_body=body,
        )
    assert str(backends[1].address) == "[2001:db8::2]:8000"


def test_one_lost_packet_is_no_failed_connection() -> None:
    """The second SYN goes out after a second (RFC 6298), and has time to be answered."""
    assert read().connect_timeout_ns >= 1_000 * MS + 400 * MS


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("workers = 64", "workers", 64),
        ('drain_timeout = "0s"', "drain_timeout_ns", 0),
        ("decisions_kept = 0", "decisions_kept", 0),
        ("access_log = false", "access_log", False),
        ('metrics = "[::1]:9851"', "metrics", ("::1", 9851)),
    ],
)
def test_keys_of_gateway(line: str, name: str, value: object) -> None:
    """Each one is taken, and changes nothing else."""
    config = parse_config(document(gateway=line), "x").gateway
    assert getattr(config, name) == value
    before = parse_config(document(), "x").gateway
    changed = {
        key for key in GatewayConfig.__slots__ if getattr(config, key) != getattr(before, key)
    }
    assert changed == {name}


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ('name = "web"', "name", "web"),
        ('mode = "snapshot"', "mode", Mode.SNAPSHOT),
        ('mode = "inline"', "mode", Mode.INLINE),
        ('policy = "hcl"', "policy", Policy.HCL),
        ("score = { rtt = 1, ttft = 0, cache = 0, queue = 0 }", "score", ScoreWeights(1, 0, 0, 0)),
        ('probe = "get"', "probe", ProbeWay.GET),
        ('probe_path = "/up?x=1"', "probe_path", "/up?x=1"),
        ('probe_interval = "10ms"', "probe_interval_ns", 10 * MS),
        ('snapshot_age = "60ms"', "snapshot_age_ns", 60 * MS),
        ('head_timeout = "1s"', "head_timeout_ns", S),
        ('body_timeout = "1s"', "body_timeout_ns", S),
        ('connect_timeout = "50ms"', "connect_timeout_ns", 50 * MS),
        ('first_byte_timeout = "5s"', "first_byte_timeout_ns", 5 * S),
        ('stream_timeout = "5s"', "stream_timeout_ns", 5 * S),
        ('idle_timeout = "5s"', "idle_timeout_ns", 5 * S),
        ("max_head = 1024", "max_head", 1024),
        ("max_body = 1", "max_body", 1),
        ("max_connections = 5", "max_connections", 5),
        ("max_per_source = 5", "max_per_source", 5),
        ("cache_blocks = 0", "cache_blocks", 0),
        ("control_arm = 50", "control_arm", 50),
        ("priorities = { high = 4, low = 0.5 }", "priorities", (("high", 4.0), ("low", 0.5))),
        (
            "race = { candidates = 3, hedge = '0s', hedge_quantile = 0.5, extra_legs = 0, "
            "retries = 0 }",
            "race",
            RaceSettings(3, 0, 0.5, 0, 0),
        ),
        ("tls = { certificate = '/c', key = '/k' }", "certificate", Certificate("/c", "/k")),
        ("other_tenants = { rate = 3 }", "other_tenants", TenantLimits("", 3, 3)),
    ],
)
def test_keys_of_a_listener(line: str, name: str, value: object) -> None:
    """Each one is taken, and changes nothing else (an interval changes what is too old)."""
    listener, before = read(line), read()
    assert getattr(listener, name) == value
    changed = {key for key in Listener.__slots__ if getattr(listener, key) != getattr(before, key)}
    assert changed <= {name}


def test_an_interval_says_what_is_too_old() -> None:
    """Ten of them, but 200 ms at least."""
    assert read('probe_interval = "1ms"').snapshot_age_ns == 200 * MS
    assert read('probe_interval = "100ms"').snapshot_age_ns == S


def test_keys_of_a_backend() -> None:
    """Weight and models; a model that is there twice is there once."""
    (first, second) = read(backend="weight = 7\nmodels = ['m1', 'm2', 'm1']").backends
    assert (first.weight, first.models) == (7, ("m1", "m2"))
    assert (second.weight, second.models) == (1, ())


def test_routes() -> None:
    """All conditions; names of hosts and headers without regard to case; indices of backends."""
    tables = (
        "[[listener.route]]\nname = 'canary'\nnames = ['A.Example.com', '*.example.org']\n"
        "path = '/v1/'\nheaders = { X-Canary = 'yes' }\nmodels = ['m/1:x']\n"
        "backends = ['b2', 'b1', 'b2']\n[[listener.route]]\nbackends = ['b1']\n"
    )
    assert read(tables=tables).routes == (
        Route(
            "canary",
            (1, 0),
            ("a.example.com", "*.example.org"),
            "/v1/",
            (("x-canary", "yes"),),
            ("m/1:x",),
        ),
        Route("route-1", (0,)),
    )


def test_tenants() -> None:
    """A burst is the rate's unless it is said; a class is one of the listener's."""
    tables = (
        "[listener.priorities]\nhigh = 2\n"
        "[[listener.tenant]]\nname = 'a/b'\nrate = 5\nstreams = 3\npriority = 'high'\n"
        "[[listener.tenant]]\nname = 'c'\nrate = 5\nburst = 50\n"
    )
    assert read(tables=tables).tenants == (
        TenantLimits("a/b", 5, 5, 3, "high"),
        TenantLimits("c", 5, 50),
    )


@pytest.mark.parametrize(
    "address", ["0.0.0.0:1", "[::]:65535", "127.0.0.1:80", "[::1]:80", "[2001:DB8::0:1]:443"]
)
def test_addresses_to_listen_on(address: str) -> None:
    """Any of this host, those included that mean all."""
    assert read(address=address).address.port in (1, 80, 443, 65535)


@pytest.mark.parametrize(
    "address",
    [
        *("443", ":443", "localhost:443", "::1:443", "[::1]", "198.18.0.1:0", "198.18.0.1:65536"),
        *("198.18.0.1:08", "[198.18.0.1]:80", "198.18.1:80", "[fe80::1%lo]:80", "224.0.0.1:80"),
        *("[ff02::1]:80", "255.255.255.255:80", "[fe80::1]:80", "[::ffff:198.18.0.1]:80"),
    ],
)
def test_addresses_that_are_none(address: str) -> None:
    """They are named, with what would be one; the same of backends, who have no wildcards."""
    assert complaint(address=address).startswith("listener.address: ")
    assert '"198.18.0.1:443"' in complaint(address=address)
    text = document().replace("127.0.0.1:8000", address)
    assert [key for key, _ in problems(text)] == ["listener.backend.address"]
    text = document().replace("127.0.0.1:8000", "0.0.0.0:80")
    assert [key for key, _ in problems(text)] == ["listener.backend.address"]


@pytest.mark.parametrize(
    ("line", "key", "words"),
    [
        ("mode = 'fast'", "mode", "'race' or 'snapshot' or 'inline'"),
        ("policy = 'best'", "policy", "'score' or 'hcl'"),
        ("probe = 'ping'", "probe", "'connect' or 'head' or 'get'"),
        ("probe_path = 'up'", "probe_path", 'a path, as "/health"'),
        ("probe_path = '/a b'", "probe_path", "a path"),
        ("head_timeout = 5", "head_timeout", "a duration"),
        ("head_timeout = '0s'", "head_timeout", "1ms"),
        ("max_head = 100", "max_head", "from 1024 to"),
        ("max_body = 0", "max_body", "a limit"),
        ("control_arm = 51", "control_arm", "from 0 to 50"),
        ("snapshot_age = '20ms'", "snapshot_age", "at least 3 times probe_interval (20ms)"),
        ("score = { rtt = 0, ttft = 0, cache = 0, queue = 0 }", "score.rtt", "above 0"),
        ("score = { age = '1ms' }", "score.age", "100ms"),
        ("race = { hedge_quantile = 1 }", "race.hedge_quantile", "at least 0.5 and less than 1"),
        ("race = { hedge_quantile = 0.4 }", "race.hedge_quantile", "at least 0.5"),
        ("race = { candidates = 0 }", "race.candidates", "from 1 to 16"),
        ("race = { hedge = '-1s' }", "race.hedge", "duration"),
        ("race = { legs = 1 }", "race.legs", "candidates, extra_legs, hedge, "),
        ("tls = { certificate = '/c' }", "tls.key", "certificate and key together"),
        ("tls = { key = '/c' }", "tls.certificate", "certificate and key together"),
        ("tls = { pem = '/c' }", "tls.pem", "certificate, key"),
        ("priorities = { high = 'x' }", "priorities.high", "a number from 0 to 1000"),
        ("other_tenants = { burst = 5 }", "other_tenants.burst", "rate beside it"),
        ("other_tenants = { rate = 5, burst = 0 }", "other_tenants.burst", "at least 1"),
        ("other_tenants = { priority = 'x' }", "other_tenants.priority", "(none)"),
        ("other_tenants = { name = 'x' }", "other_tenants.name", "burst"),
        ("backends = []", "backends", "address"),
        ("tenant = [{ rate = 1 }]", "tenant.name", "as X-Tenant-ID has it"),
        ("tenant = [{ name = 'a b' }]", "tenant.name", "as X-Tenant-ID has it"),
        ("tenant = [{ name = 'a' }, { name = 'a' }]", "tenant.name", "each tenant once"),
        ("route = [{ backends = ['b3'] }]", "route.backends", "one of 'b1', 'b2'"),
        ("route = [{ names = ['x'] }]", "route.backends", "names of backends"),
        ("route = [{ backends = ['b1'], names = ['a..b'] }]", "route.names", "host names"),
        ("route = [{ backends = ['b1'], names = ['*'] }]", "route.names", "host names"),
        ("route = [{ backends = ['b1'], path = 'v1' }]", "route.path", "the beginning of paths"),
        (
            "route = [{ backends = ['b1'], headers = { 'a b' = 'x' } }]",
            "route.headers.'a b'",
            "the name of a header",
        ),
        (
            "route = [{ backends = ['b1'], headers = { a = '' } }]",
            "route.headers.a",
            "printable characters",
        ),
        ("route = [{ backends = ['b1'], models = ['a b'] }]", "route.models", "names of models"),
        ("route = [{ backends = ['b1'], host = 'x' }]", "route.host", "backends, headers"),
    ],
)
def test_wrong_values(line: str, key: str, words: str) -> None:
    """The key is named, and what would be right."""
    text = complaint(line)
    assert text.startswith(f"listener.{key}: "), text
    assert words in text


@pytest.mark.parametrize(
    ("line", "key", "words"),
    [
        ("workers = 0", "workers", "from 1 to 64"),
        ("drain_timeout = '25h'", "drain_timeout", "24h"),
        ("decisions_kept = -1", "decisions_kept", "from 0 to 1000000"),
        ("access_log = 1", "access_log", "true or false"),
        ("metrics = 9851", "metrics", "127.0.0.1:9850"),
        ("threads = 2", "threads", "access_log, "),
    ],
)
def test_wrong_values_of_gateway(line: str, key: str, words: str) -> None:
    """As those of listeners."""
    text = complaint(gateway=line)
    assert text.startswith(f"gateway.{key}: "), text
    assert words in text


@pytest.mark.parametrize(
    ("kind", "line", "key"),
    [
        ("tls", "tls = { certificate = '/c', key = '/k' }", "listener.tls"),
        ("tls", "route = [{ backends = ['b1'], path = '/v1' }]", "listener.route.path"),
        ("tls", "route = [{ backends = ['b1'], headers = { a = 'b' } }]", "listener.route.headers"),
        ("tls", "route = [{ backends = ['b1'], models = ['m'] }]", "listener.route.models"),
        ("http", "route = [{ backends = ['b1'], models = ['m'] }]", "listener.route.models"),
    ],
)
def test_keys_that_other_types_have(kind: str, line: str, key: str) -> None:
    """What a listener cannot see, it cannot go by."""
    assert complaint(line, kind=kind).startswith(f"{key}: ")


def test_models_are_for_those_who_read_them() -> None:
    """A backend's models mean nothing where bodies are not read."""
    text = complaint(kind="http", backend="models = ['m']")
    assert text.startswith("listener.backend.models: ")
    assert 'type = "llm"' in text


@pytest.mark.parametrize("kind", ["smtp", "quic", ""])
def test_types(kind: str) -> None:
    """What is none is named; one that comes later is called that."""
    assert complaint(kind=kind).startswith("listener.type: ")
    assert ("not available in this version" in complaint(kind=kind)) == (kind == "quic")


def test_what_is_missing() -> None:
    """Type, address and a backend have to be there."""
    found = dict(problems("[[listener]]\n"))
    assert set(found) == {"listener.type", "listener.address", "listener.backend"}
    assert "'tls' or 'http' or 'llm'" in found["listener.type"]
    assert "at least one [[listener.backend]]" in found["listener.backend"]


def test_each_thing_once() -> None:
    """Names and addresses of listeners; of backends of one listener, not of two."""
    other = document(address="198.18.0.2:443").partition("[[listener]]")[2]
    two = f"{document()}[[listener]]{other}"
    assert len(parse_config(two, "x").gateway.listeners) == 2
    ((key, text),) = problems(two.replace("198.18.0.2:443", '198.18.0.1:443"\nname = "two'))
    assert (key, "listener '198.18.0.1:443' as well" in text) == ("listener.address", True)
    named = two.replace('type = "llm"', 'type = "llm"\nname = "web"')
    ((key, text),) = problems(named)
    assert (key, "'web'" in text) == ("listener.name", True)
    ((key, text),) = problems(document().replace("[2001:db8::2]:8000", "127.0.0.1:8000"))
    assert (key, "backend 'b1' as well" in text) == ("listener.backend", True)
    ((key, text),) = problems(document().replace('"b2"', '"b1"'))
    assert (key, "'b1' twice" in text) == ("listener.backend", True)
