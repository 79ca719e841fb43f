# SPDX-License-Identifier: Apache-2.0
"""Field lines of HTTP/1.1 (RFC 9112 section 5), read without leniency.

What two parsers can read in two ways is refused: a name with a blank before its colon, a
folded line, a control character, a name that a CGI-like backend takes for another one.
"""

from __future__ import annotations

from xdp_router.gateway.errors import MessageError

# RFC 9110 section 5.6.2.
TOKEN_BYTES = (
    b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"  # tchar
)

# All that may stand in a head: visible bytes, blank, tab, obs-text; CR and LF end lines.
HEAD_BYTES = bytes(c for c in range(256) if (c >= 0x20 and c != 0x7F) or c in b"\t\r\n")

# What says where a message ends and whom it is for. Never removed, never in a trailer.
FRAMING_FIELDS = frozenset((b"content-length", b"host", b"transfer-encoding"))

# Backends behind a CGI-like interface (WSGI, FastCGI) read "_" as "-": a field of ours could be
# forged by its twin.
_TWINS = FRAMING_FIELDS | {
    b"connection",
    b"upgrade",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-forwarded-proto",
}

_USUAL = """
accept accept-charset accept-encoding accept-language accept-ranges access-control-allow-origin
access-control-request-headers access-control-request-method age allow alt-svc authorization
cache-control connection content-disposition content-encoding content-language content-length
content-location content-range content-security-policy content-type cookie date dnt etag expect
expires forwarded from host if-match if-modified-since if-none-match if-range if-unmodified-since
keep-alive last-modified link location max-forwards openai-beta openai-organization
openai-processing-ms openai-project openai-version origin pragma priority proxy-authorization
proxy-connection range referer referrer-policy retry-after save-data sec-ch-ua sec-ch-ua-mobile
sec-ch-ua-platform sec-fetch-dest sec-fetch-mode sec-fetch-site sec-fetch-user sec-websocket-accept
sec-websocket-extensions sec-websocket-key sec-websocket-protocol sec-websocket-version server
set-cookie strict-transport-security te traceparent tracestate trailer transfer-encoding upgrade
upgrade-insecure-requests user-agent vary via x-accel-buffering x-api-key x-content-type-options
x-forwarded-for x-forwarded-host x-forwarded-proto x-frame-options x-model-name x-powered-by
x-real-ip x-request-id x-requested-with x-stainless-arch x-stainless-async x-stainless-lang
x-stainless-os x-stainless-package-version x-stainless-read-timeout x-stainless-retry-count
x-stainless-runtime x-stainless-runtime-version x-stainless-timeout x-tenant-id x-tenant-priority
"""


def _spellings() -> dict[bytes, bytes]:
    """Return usual names as they are written -> in lower case: one look-up judges them."""
    table: dict[bytes, bytes] = {}
    for name in _USUAL.split():
        lower = name.encode()
        table[lower] = table[lower.title()] = lower
    for odd in (b"X-Tenant-ID", b"X-Request-ID", b"ETag", b"DNT", b"TE", b"OpenAI-Beta"):
        table[odd] = odd.lower()
    return table


SPELLINGS = _spellings()


def field_name(line: bytes, name: bytes, status: int) -> bytes:
    """Return the name of a field line in lower case, or raise MessageError that tells why not.

    ``name`` is what stands before the first colon of ``line``.
    """
    if line[:1] in (b" ", b"\t"):
        raise MessageError(status, "a folded header line")
    if len(name) == len(line):
        raise MessageError(status, "a header line without a colon")
    if not name:
        raise MessageError(status, "a header line without a name")
    if name.translate(None, TOKEN_BYTES):
        if name[-1:] in (b" ", b"\t"):
            raise MessageError(status, "a blank between a header's name and its colon")
        raise MessageError(status, "a character in a header's name that cannot be there")
    lower = name.lower()
    if b"_" in lower and lower.replace(b"_", b"-") in _TWINS:
        raise MessageError(status, "an underscore in the name of a header of the protocol")
    return lower


def read_fields(
    lines: list[bytes], wanted: frozenset[bytes], status: int
) -> tuple[list[tuple[bytes, bytes]], dict[bytes, list[bytes]]]:
    """Return the fields of a head's lines after the first, and the values of the wanted ones.

    Names are in lower case, values without the blanks around them, all in their order. The
    caller has made sure that no line holds a control character. Raises MessageError(status).
    """
    fields: list[tuple[bytes, bytes]] = []
    found: dict[bytes, list[bytes]] = {}
    spellings = SPELLINGS
    add = fields.append
    for line in lines:
        written, colon, value = line.partition(b":")
        name = spellings.get(written)
        if name is None or not colon:
            name = field_name(line, written, status)
        value = value.strip(b" \t")
        add((name, value))
        if name in wanted:
            if name in found:
                found[name].append(value)
            else:
                found[name] = [value]
    return fields, found


def read_trailer(line: bytes, status: int) -> None:
    """Judge one line of a trailer section, without its CRLF. Raises MessageError(status)."""
    if line.translate(None, HEAD_BYTES) or b"\r" in line or b"\n" in line:
        raise MessageError(status, "a control character in a trailer")
    name = field_name(line, line.partition(b":")[0], status)
    if name in FRAMING_FIELDS:
        raise MessageError(status, "a trailer that would change the message's end")


def tokens(values: list[bytes]) -> list[bytes]:
    """Return the members of a comma-separated field, in lower case."""
    if len(values) == 1 and values[0] and b"," not in values[0]:
        return [values[0].lower()]
    members = (part.strip(b" \t").lower() for value in values for part in value.split(b","))
    return [member for member in members if member]
