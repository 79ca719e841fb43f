# SPDX-License-Identifier: Apache-2.0
"""How backends are probed, as the configuration says it."""

from __future__ import annotations

import tomllib

import pytest

from xdp_router.core.config_fields import Problems, Table
from xdp_router.core.config_probe import ANSWER_MAX, PAYLOAD_MAX, read_probe, require_probes
from xdp_router.core.errors import ConfigError
from xdp_router.core.model import Probe, ProbeKind
from xdp_router.core.probe_kinds import ANSWER_SEEN

TCP, UDP = 6, 17
ICMP = Probe(ProbeKind.ICMP)
ECHO = Probe(ProbeKind.UDP, payload=b"ping", answer=b"pong")


def read(service: str, backend: str = "", protocol: int = UDP) -> Probe:
    """The probe of a backend; both tables are given by their lines. Raises ConfigError."""
    text = f"[service]\n{service}\n[backend]\n{backend}\n"
    problems = Problems("router.toml", text)
    root = Table(tomllib.loads(text), (), problems)
    inherited = read_probe(root.table("service"), protocol)
    probe = read_probe(root.table("backend"), protocol, inherited)
    require_probes(root.table("service"), [probe])
    if problems:
        raise problems.error()
    assert probe is not None
    return probe


@pytest.mark.parametrize(
    ("text", "probe"),
    [
        ('probe = "syn"', Probe()),
        ('probe = "icmp"', ICMP),
        ('probe = "tcp:22"', Probe(port=22)),
        ('probe = "tcp:65535"', Probe(port=65535)),
        ('probe = "stun"', Probe(ProbeKind.STUN)),
        ('probe = "udp"', Probe(ProbeKind.UDP)),
        ('probe = "tcp-connect"', Probe(ProbeKind.CONNECT)),
        ('probe = "tcp-connect:22"', Probe(ProbeKind.CONNECT, port=22)),
        ('probe = "http"', Probe(ProbeKind.HTTP)),
        (
            'probe = "http:8081"\nprobe_path = "/up?x=1"\nprobe_host = "shop.example"\n'
            'probe_status = "204"',
            Probe(ProbeKind.HTTP, 8081, path="/up?x=1", host="shop.example", status=(204, 204)),
        ),
        (
            'probe = "udp"\nprobe_payload = "ping"\nprobe_answer = "hex:706F6e67"',
            ECHO,
        ),
        ('probe = "udp"\nprobe_payload = "hex:"\nprobe_answer = ""', Probe(ProbeKind.UDP)),
        (
            'probe = "udp"\nprobe_payload = "h\\u00e9"',
            Probe(ProbeKind.UDP, payload=b"h\xc3\xa9"),
        ),
    ],
)
def test_kinds(text: str, probe: Probe) -> None:
    """A TCP service may have each of them, for itself or for a backend."""
    assert read(text, protocol=TCP) == probe
    assert read("", text, TCP) == probe


def test_tcp_is_probed_by_syn_if_nothing_is_said() -> None:
    """As before there were kinds."""
    assert read("", protocol=TCP) == Probe()


@pytest.mark.parametrize(
    ("service", "backend", "probe"),
    [
        ('probe = "icmp"', "", ICMP),
        ("", 'probe = "icmp"', ICMP),
        ('probe = "stun"', 'probe = "icmp"', ICMP),
        ('probe = "udp"\nprobe_payload = "ping"\nprobe_answer = "pong"', "", ECHO),
        ('probe = "udp"\nprobe_payload = "ping"', 'probe_answer = "pong"', ECHO),
        ('probe = "udp"\nprobe_payload = "x"', 'probe_payload = "ping"\nprobe_answer = "pong"',
         ECHO),
        ('probe = "udp"\nprobe_payload = "ping"', 'probe = "udp"\nprobe_answer = "pong"', ECHO),
        ('probe = "udp"\nprobe_answer = "pong"', 'probe_answer = ""', Probe(ProbeKind.UDP)),
        ('probe = "udp"\nprobe_payload = "ping"', 'probe = "icmp"', ICMP),
        ('probe = "http:1"\nprobe_path = "/a"\nprobe_status = "200"', 'probe_path = "/b"',
         Probe(ProbeKind.HTTP, 1, path="/b", status=(200, 200))),
        ('probe = "http:1"\nprobe_path = "/a"', 'probe = "http:2"',
         Probe(ProbeKind.HTTP, 2, path="/a")),
        ('probe = "icmp"', 'probe = "udp"\nprobe_payload = "ping"\nprobe_answer = "pong"', ECHO),
    ],
)  # fmt: skip
def test_a_backend_goes_before_its_service(service: str, backend: str, probe: Probe) -> None:
    """Key by key, as long as the kind is the same."""
    assert read(service, backend) == probe


@pytest.mark.parametrize(
    ("service", "backend", "said"),
    [
        ("", "", "service.probe: found none, and UDP has no answer that all servers give, "
                 'expected "icmp", "tcp:PORT", "tcp-connect:PORT", "http:PORT", "stun" or "udp", '
                 "here or for each backend"),
        ('probe = "syn"', "", "service.probe: found 'syn', which a UDP server does not answer, "
                              'expected "icmp", "tcp:PORT", "tcp-connect:PORT",'),
        ('probe = "http"', "", "service.probe: found 'http' without a port, which has a UDP"),
        ('probe = "tcp-connect"', "", "service.probe: found 'tcp-connect' without a port"),
        ('probe = "http:8080"\nprobe_path = "up"', "",
         "service.probe_path: found 'up', expected a path that begins with"),
        ('probe = "http:8080"\nprobe_path = "/a b"', "", "service.probe_path: found '/a b'"),
        ('probe = "http:8080"\nprobe_host = "a\\r\\nb"', "", "service.probe_host: found"),
        ('probe = "http:8080"\nprobe_status = "399-200"', "", "found '399-200', expected a status"),
        ('probe = "http:8080"\nprobe_status = "ok"', "", "found 'ok', expected a status"),
        ('probe = "icmp"\nprobe_path = "/"', "",
         """service.probe_path: found it beside probe = "icmp", expected probe = "http\""""),
        ('probe = "tcp"', "", "found 'tcp', expected"),
        ('probe = "tcp:0"', "", "found 'tcp:0', expected"),
        ('probe = "tcp:65536"', "", "found 'tcp:65536', expected"),
        ('probe = "SYN"', "", "found 'SYN', expected"),
        ("probe = 7", "", "found the number 7, expected"),
        ('probe = "icmp"\nprobe_payload = "x"', "",
         """service.probe_payload: found it beside probe = "icmp", expected probe = "udp\""""),
        ('probe = "tcp:22"\nprobe_payload = "x"', "",
         """service.probe_payload: found it beside probe = "tcp:22", expected probe = "udp\""""),
        ('probe_payload = "x"', 'probe = "icmp"', "found it without probe, expected probe ="),
        ('probe = "htp"\nprobe_payload = "x"', "", "service.probe: found 'htp', expected"),
        ('probe = "udp"', 'probe = "stun"\nprobe_answer = "x"',
         'backend.probe_answer: found it beside probe = "stun", expected probe = "udp" beside it'),
        ('probe = "udp"\nprobe_payload = "hex:0"', "", "found 'hex:0', expected text, or bytes as"),
        ('probe = "udp"\nprobe_payload = "hex:xx"', "", "found 'hex:xx', expected text"),
        (f'probe = "udp"\nprobe_payload = "{"x" * (PAYLOAD_MAX + 1)}"', "",
         "found 513 bytes, expected text, or bytes as \"hex:0a1b\", of at most 512 bytes"),
        (f'probe = "udp"\nprobe_answer = "hex:{"00" * (ANSWER_MAX + 1)}"', "",
         "found 65 bytes, expected"),
    ],
)  # fmt: skip
def test_what_will_not_do(service: str, backend: str, said: str) -> None:
    """The key, what was found there, and what may stand there; one problem each."""
    with pytest.raises(ConfigError) as caught:
        read(service, backend)
    assert said in str(caught.value)
    if service:
        assert len(caught.value.problems) == 1


def test_tcp_is_told_of_all_kinds() -> None:
    """``syn`` is one of them there."""
    with pytest.raises(ConfigError, match=r'expected "syn", "icmp", "tcp:PORT", "tcp-connect",'):
        read('probe = "ping"', protocol=TCP)


def test_an_expected_answer_is_no_longer_than_what_is_seen_of_it() -> None:
    """XDP hands on that many bytes."""
    assert ANSWER_MAX == ANSWER_SEEN
