# SPDX-License-Identifier: Apache-2.0
"""ClientHellos: a value, not enough yet, or the error that names the fault."""

from __future__ import annotations

import random
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.hello_bytes import (
    ALPN,
    ECH,
    RANDOM,
    SERVER_NAME,
    SUPPORTED_VERSIONS,
    alpn,
    extension,
    hello,
    key_share,
    message,
    record,
    records,
    server_name,
    supported_versions,
    vector,
)
from xdp_router.gateway.tls_hello import (
    MAX_HELLO,
    MAX_RECORD,
    ClientHello,
    HelloError,
    HelloParser,
    alert_record,
)

USUAL = (
    server_name(b"api.example.com"),
    alpn(b"h2", b"http/1.1"),
    supported_versions(0x0304, 0x0303),
)
SSL_2_HELLO = bytes.fromhex("802e010302001500000010") + b"\0\0\x2f" * 7 + b"r" * 16


def parse(data: bytes) -> ClientHello | None:
    """Feed a new parser all at once."""
    return HelloParser().feed(data)


def parse_singly(data: bytes) -> ClientHello | None:
    """Feed a new parser byte by byte up to its outcome."""
    parser = HelloParser()
    for at in range(len(data)):
        found = parser.feed(data[at : at + 1])
        if found:
            return found
    return None


def refused(data: bytes) -> HelloError:
    """Return the error, which must be the same whole and byte by byte."""
    with pytest.raises(HelloError) as whole:
        parse(data)
    with pytest.raises(HelloError) as singly:
        parse_singly(data)
    assert (whole.value.alert, str(whole.value)) == (singly.value.alert, str(singly.value))
    return whole.value


def name_in(*extensions: bytes) -> str | None:
    """Return the server name of a hello with these extensions."""
    found = parse(record(hello(*extensions)))
    assert found
    return found.server_name


def test_a_hello_says_who_is_asked_for() -> None:
    """Server name, protocols, versions and size, whole and byte by byte."""
    sent = record(hello(*USUAL))
    expected = ClientHello("api.example.com", ("h2", "http/1.1"), (0x0304, 0x0303), len(sent))
    assert parse(sent) == expected
    assert parse_singly(sent) == expected


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_what_is_fed_may_be_a_buffer(kind: type) -> None:
    """Bytes, the bytes of a receive buffer, a view of it, also when it is used again afterwards."""
    sent = record(hello(*USUAL))
    parser = HelloParser()
    buffer = bytearray(sent[:50])
    assert parser.feed(kind(buffer)) is None
    buffer[:] = bytes(50)
    found = parser.feed(kind(sent[50:]))
    assert found
    assert found.server_name == "api.example.com"


def test_the_outcome_stays() -> None:
    """What comes after the hello is the backend's; after an error nothing mends it."""
    sent = record(hello(*USUAL))
    parser = HelloParser()
    found = parser.feed(sent)
    assert parser.feed(b"anything") is found
    assert parser.feed(sent) is found

    parser = HelloParser()
    with pytest.raises(HelloError) as first:
        parser.feed(b"GET / HTTP/1.1\r\n")
    with pytest.raises(HelloError) as again:
        parser.feed(sent)
    assert str(again.value) == str(first.value)
    assert again.value.alert == first.value.alert
    assert again.value.plain_http


def test_a_parser_is_fed_nothing() -> None:
    """No bytes change nothing."""
    parser = HelloParser()
    assert parser.feed(b"") is None
    assert parser.feed(record(hello())[:7]) is None
    assert parser.feed(b"") is None
    assert parser.feed(record(hello())[7:]) == parse(record(hello()))


LONG = hello(
    *USUAL,
    extension(0x0A0A, b""),
    key_share([(0x0A0A, 1), (0x11EC, 1216), (29, 32)]),
    extension(ECH, bytes(200)),
)


@pytest.mark.parametrize(
    "sent",
    [record(hello()), record(hello(*USUAL)), record(LONG), records(LONG, [1, 3, 4, 700, 1, 1])],
    ids=["bare", "usual", "post-quantum", "six records"],
)
def test_every_beginning_needs_more(sent: bytes) -> None:
    """A truncated hello is never a value and never an error; its last byte brings the value."""
    for size in range(len(sent)):
        assert parse(sent[:size]) is None, size
    found = parse(sent)
    assert found
    assert found.size == len(sent)
    for size in range(1, len(sent)):
        parser = HelloParser()
        assert parser.feed(sent[:size]) is None
        assert parser.feed(sent[size:]) == found, size


def test_every_beginning_of_a_body_is_broken() -> None:
    """A hello whose own length ends too early is an error at every length, unless it ends where
    the extensions, which may be absent, would begin."""
    body = hello(*USUAL)[4:]
    bare = len(hello()) - 4
    for size in range(len(body)):
        if size == bare:
            assert parse(record(message(1, body[:size])))
        else:
            assert refused(record(message(1, body[:size]))).alert == 50, size


def test_every_shortened_extension_is_broken() -> None:
    """The same for each extension that is read, with all lengths around it right."""
    for whole in USUAL:
        kind, content = int.from_bytes(whole[:2], "big"), whole[4:]
        for size in range(len(content)):
            assert refused(record(hello(extension(kind, content[:size])))).alert == 50
        assert refused(record(hello(extension(kind, content + b"\0")))).alert == 50


@pytest.mark.parametrize("size", [1, 2, 5, 100, MAX_RECORD])
def test_a_hello_over_several_records(size: int) -> None:
    """Records of any size, and their own versions: the message is what counts."""
    sent = records(LONG, [size] * len(LONG))
    found = parse(sent)
    assert found
    assert found == parse_singly(sent)
    assert found.server_name == "api.example.com"
    assert found.size == len(sent)
    mixed = record(LONG[:9], version=0x0301) + record(LONG[9:], version=0x0303)
    assert parse(mixed)


def test_the_size_leaves_early_data_out() -> None:
    """0-RTT comes in records of its own behind the hello."""
    sent = record(hello(*USUAL))
    found = parse(sent + record(b"\1", kind=20) + record(b"early", kind=23))
    assert found
    assert found.size == len(sent)


def test_a_hello_of_the_most_bytes() -> None:
    """16 KiB with the message's header pass, in one record or more; one byte more is refused at
    once, before it is sent."""
    room = MAX_HELLO - len(hello(*USUAL, extension(21, b"")))
    biggest = hello(*USUAL, extension(21, bytes(room)))
    assert len(biggest) == MAX_HELLO
    assert parse(record(biggest))
    assert parse(records(biggest, [5000] * 4))
    error = refused(records(hello(*USUAL, extension(21, bytes(room + 1))), [9])[:9])
    assert error.alert == 47
    assert "16385 bytes; expected at most 16384" in str(error)


def test_what_is_kept_is_bounded() -> None:
    """A parser never keeps more than the greatest hello; with an outcome it keeps nothing."""
    parser = HelloParser()
    sent = records(hello(extension(21, bytes(16000))), [200] * 100)
    for at in range(0, len(sent) - 1, 100):
        parser.feed(sent[at : min(at + 100, len(sent) - 1)])
        assert len(parser._message) <= MAX_HELLO
    assert parser.feed(sent[-1:])
    assert not parser._message

    parser = HelloParser()
    assert parser.feed(sent[:5000]) is None
    with pytest.raises(HelloError):
        parser.feed(sent[:1] * 500)
    assert not parser._message


# Names.


def test_no_server_name() -> None:
    """A client without SNI, with extensions and without any, is a client nevertheless."""
    assert name_in(*USUAL[1:]) is None
    assert name_in() is None
    empty = record(hello(block=b"\0\0"))
    assert parse(empty) == ClientHello(None, (), (0x0303,), len(empty))


@pytest.mark.parametrize(
    ("sent", "name"),
    [
        (b"Api.EXAMPLE.com", "api.example.com"),
        (b"api.example.com.", "api.example.com"),
        (b"xn--bcher-kva.example", "xn--bcher-kva.example"),
        (b"under_score.example", "under_score.example"),
        (b"localhost", "localhost"),
        (b"192.0.2.1", "192.0.2.1"),
        (b"2001:db8::1", "2001:db8::1"),
        (b"a" * 255, "a" * 255),
    ],
)
def test_names_have_one_form(sent: bytes, name: str) -> None:
    """Lower case, no dot at the end. An address is a name like any other: nobody has that one."""
    assert name_in(server_name(sent)) == name


@pytest.mark.parametrize(
    ("broken", "alert", "says"),
    [
        (server_name(b""), 50, "empty"),
        (server_name(b"."), 50, "empty"),
        (server_name(), 50, "list"),
        (extension(SERVER_NAME, b""), 50, "list"),
        (server_name(b"a", b"b"), 50, "not exactly one name"),
        (server_name(b"a", b"a"), 50, "not exactly one name"),
        (server_name(b"a", kind=1), 50, "type 1; expected 0"),
        (server_name(b"a" * 256), 112, "256 bytes; expected at most 255"),
        (server_name("bücher.example".encode()), 112, "xn--"),
        (server_name(b"a\0.example"), 112, "visible ASCII"),
        (server_name(b"a\n.example"), 112, "visible ASCII"),
        (server_name(b"a b"), 112, "visible ASCII"),
        (server_name(b"a\x7f"), 112, "visible ASCII"),
        (server_name(b"a") + server_name(b"a"), 47, "two server_name"),
        (server_name(b"a") + server_name(b"b"), 47, "two server_name"),
    ],
)
def test_names_that_no_host_has(broken: bytes, alert: int, says: str) -> None:
    """Each is refused with its reason: two parsers that read it differently would be a hole."""
    error = refused(record(hello(broken)))
    assert error.alert == alert
    assert says in str(error)


def test_the_outer_name_of_an_encrypted_hello() -> None:
    """With ECH the name that can be seen is the one to go by, wherever the extension stands."""
    inner = extension(ECH, b"\0\0\1\0\1\x2a" + vector(2, bytes(32)) + vector(2, bytes(200)))
    assert name_in(inner, server_name(b"public.example")) == "public.example"
    assert name_in(server_name(b"public.example"), inner) == "public.example"


# ALPN and versions.


def test_protocols_keep_their_order() -> None:
    """Also long lists and names of strange bytes (GREASE); none is none."""
    many = [f"protocol-{number}".encode() for number in range(1000)]
    found = parse(record(hello(alpn(*many))))
    assert found
    assert found.alpn == tuple(name.decode() for name in many)
    found = parse(record(hello(alpn(b"\x0a\xfa", b"x" * 255))))
    assert found
    assert found.alpn == ("\x0a\xfa", "x" * 255)
    found = parse(record(hello(USUAL[0])))
    assert found
    assert found.alpn == ()


def test_versions() -> None:
    """Those of the list without GREASE; without a list the one that the hello names."""
    for version in (0x0300, 0x0301, 0x0302, 0x0303, 0x0304, 0x7F1C):
        found = parse(record(hello(version=version)))
        assert found
        assert found.versions == (version,)
    found = parse(record(hello(supported_versions(0xFAFA, 0x0304, 0x0A0A, 0x0303))))
    assert found
    assert found.versions == (0x0304, 0x0303)
    found = parse(record(hello(supported_versions(0x1A1A))))
    assert found
    assert found.versions == ()


@pytest.mark.parametrize(
    ("broken", "alert", "says"),
    [
        (alpn(), 50, "ALPN"),
        (alpn(b""), 50, "ALPN"),
        (alpn(b"h2", b""), 50, "ALPN protocol is empty"),
        (extension(ALPN, b""), 50, "ALPN"),
        (extension(ALPN, vector(2, b"\3h2")), 50, "beyond the list"),
        (alpn(b"h2") + alpn(b"h2"), 47, "two ALPN"),
        (supported_versions(), 50, "versions"),
        (extension(SUPPORTED_VERSIONS, b"\3\3\4\3"), 50, "versions"),
        (extension(SUPPORTED_VERSIONS, b"\2\3\4\3"), 50, "versions"),
        (supported_versions(0x0A0A) + supported_versions(0x0304), 47, "two supported_versions"),
    ],
)
def test_broken_lists(broken: bytes, alert: int, says: str) -> None:
    """Empty, too long, too short, twice."""
    error = refused(record(hello(broken)))
    assert error.alert == alert
    assert says in str(error)


def test_other_extensions_are_the_backends_to_judge() -> None:
    """GREASE, unknown ones, even twice; their content is not looked at."""
    for kind in (0x0A0A, 0xFAFA, 51, 0xFFFF):
        odd = extension(kind, b"odd")
        assert name_in(odd, odd, *USUAL, odd) == "api.example.com"


# Messages and records.


@pytest.mark.parametrize(
    ("sent", "alert", "says"),
    [
        (hello(version=0x0200), 70, "version 0x0200 is before SSL 3.0"),
        (hello(session=bytes(33)), 50, "session id of 33 bytes"),
        (hello(suites=b""), 50, "cipher suites of 0 bytes"),
        (hello(suites=b"\0\x2f\0"), 50, "cipher suites of 3 bytes"),
        (hello(compression=b""), 50, "no compression method 0"),
        (hello(compression=b"\1\x40"), 50, "no compression method 0"),
        (message(1, hello()[4:-2] + b"\2\0"), 50, "within the compression methods"),
        (hello(block=b"\0"), 50, "extensions"),
        (hello(block=b"\0\5a"), 50, "extensions"),
        (hello(block=vector(2, USUAL[0]) + b"\0"), 50, "extensions"),
        (hello(block=vector(2, b"\0\0\0")), 50, "extension's header"),
        (hello(block=vector(2, b"\x0a\x0a\0\1")), 50, "within extension 2570"),
        (message(1, b""), 50, "within version and random"),
        (message(1, b"\3\3" + RANDOM), 50, "within version and random"),
        (message(2, b"abc"), 10, "handshake message 2"),
        (message(0, b""), 10, "handshake message 0"),
        (hello(*USUAL) + b"\1", 10, "more follows in the record"),
        (hello(*USUAL) * 2, 10, "more follows in the record"),
    ],
)
def test_broken_messages(sent: bytes, alert: int, says: str) -> None:
    """Each fault has its words and its alert, in one record and in many."""
    for framed in (record(sent), records(sent, [3, 60])):
        error = refused(framed)
        assert error.alert == alert
        assert says in str(error)


@pytest.mark.parametrize(
    ("sent", "alert", "says"),
    [
        (record(b"\2\x28", kind=21), 10, "an alert where a ClientHello was expected"),
        (record(b"\1", kind=20), 10, "ChangeCipherSpec where"),
        (record(b"x", kind=23), 10, "application data where"),
        (record(b"x", kind=24), 10, "a heartbeat where"),
        (record(b"x", kind=25), 70, "no TLS: the first bytes are 19 03 01 00 01"),
        (record(b"x", version=0x0201), 70, "no TLS"),
        (record(b""), 10, "empty handshake record"),
        (record(hello()[:9]) + record(b""), 10, "empty handshake record"),
        (record(hello()[:9]) + record(b"\2\x28", kind=21), 10, "an alert"),
        (record(hello()[:9]) + record(b"\1", kind=20), 10, "ChangeCipherSpec"),
        (record(hello()[:9]) + b"hello", 70, "no TLS"),
        (record(bytes(MAX_RECORD + 1)), 22, "a record of 16385 bytes; expected at most 16384"),
        (b"\x16\3\1\xff\xff", 22, "a record of 65535 bytes"),
        (SSL_2_HELLO, 70, "SSL 2.0"),
        (b"SSH-2.0-OpenSSH_9.2p1\r\n", 70, "no TLS: the first bytes are 53 53 48 2d 32"),
        (bytes(20), 70, "no TLS: the first bytes are 00 00 00 00 00"),
    ],
)
def test_broken_records(sent: bytes, alert: int, says: str) -> None:
    """What is no record of a handshake is told by its first five bytes."""
    error = refused(sent)
    assert error.alert == alert
    assert says in str(error)
    assert not error.plain_http


@pytest.mark.parametrize(
    "line",
    [
        *(f"{method} / HTTP/1.1" for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH")),
        "OPTIONS * HTTP/1.1",
        "TRACE / HTTP/1.0",
        "CONNECT a.example:443 HTTP/1.1",
        "GET http://a.example/ HTTP/1.1",
        "PRI * HTTP/2.0",
    ],
)
def test_plain_http_is_told_apart(line: str) -> None:
    """The usual mistake of an operator gets its own words, for the log and for the client."""
    error = refused(line.encode() + b"\r\n\r\n")
    assert error.plain_http
    assert "plain HTTP" in str(error)
    assert "https://" in str(error)


def test_an_error_is_seen_at_its_first_byte() -> None:
    """A client that sends no TLS is not kept waiting for bytes that do not matter."""
    assert parse(b"GET ") is None
    assert refused(b"GET /").plain_http
    assert parse(record(message(2, bytes(5000)))[:8]) is None
    assert refused(record(message(2, bytes(5000)))[:9]).alert == 10
    assert parse(record(hello(*USUAL) + b"x")[: 4 + len(hello(*USUAL))]) is None
    assert refused(record(hello(*USUAL) + b"x")[: 5 + len(hello(*USUAL))]).alert == 10


@pytest.mark.parametrize("alert", [10, 22, 47, 50, 70, 112])
def test_clients_understand_the_alert(alert: int) -> None:
    """OpenSSL names the alert that it was sent."""
    context = ssl.create_default_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="a.example")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    incoming.write(alert_record(alert))
    with pytest.raises(ssl.SSLError) as caught:
        client.do_handshake()
    words = ssl.AlertDescription(alert).name.removeprefix("ALERT_DESCRIPTION_")
    assert words in (caught.value.reason or "")


EXTENSIONS = st.lists(
    st.one_of(
        st.builds(extension, st.integers(44, 0xFFFF), st.binary(max_size=50)),
        st.just(extension(0x0A0A, b"")),
    ),
    max_size=8,
)
CUTS = st.lists(st.integers(1, 400), max_size=12)


@given(
    st.from_regex(rb"[a-z0-9_.:-]{1,80}[a-z]", fullmatch=True),
    st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=9),
    EXTENSIONS,
    st.randoms(use_true_random=False),
    CUTS,
    CUTS,
)
def test_a_hello_is_read_as_it_was_built(
    name: bytes,
    protocols: list[bytes],
    others: list[bytes],
    order: random.Random,
    cuts: list[int],
    feeds: list[int],
) -> None:
    """In any order of extensions, cut into any records and any segments."""
    extensions = [server_name(name.upper()), alpn(*protocols), *others]
    order.shuffle(extensions)
    sent = records(hello(*extensions), cuts)
    parser = HelloParser()
    at, found = 0, None
    for size in [*feeds, len(sent)]:
        assert found is None or at >= len(sent)
        found = parser.feed(sent[at : at + size])
        at += size
    expected = tuple(protocol.decode("latin-1") for protocol in protocols)
    assert found == ClientHello(name.decode(), expected, (0x0303,), len(sent))
