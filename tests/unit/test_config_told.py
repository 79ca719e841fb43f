# SPDX-License-Identifier: Apache-2.0
"""``[listener.scrape]``: who is asked, and what is said of what cannot be."""

from __future__ import annotations

import pytest

from xdp_router.core.address import LOOPBACK_IPV6
from xdp_router.core.config import parse_config
from xdp_router.core.config_scrape import PRESETS, scraped_endpoint
from xdp_router.core.config_told import scraped_services
from xdp_router.core.errors import ConfigError
from xdp_router.core.listeners import Listener
from xdp_router.core.model import Endpoint, Mode

S = 10**9


def document(table: str, kind: str = "llm", backend: str = "", address: str = "[::1]:9") -> str:
    """A listener with backends b1 and b2; lines of its tables."""
    return (
        f'[[listener]]\nname = "front"\naddress = "198.18.0.1:443"\ntype = "{kind}"\n'
        f'mode = "inline"\n{table}\n'
        f'[[listener.backend]]\nname = "b1"\naddress = "127.0.0.1:8000"\n{backend}\n'
        f'[[listener.backend]]\nname = "b2"\naddress = "{address}"\n'
    )


def read(text: str) -> Listener:
    """The listener."""
    (listener,) = parse_config(text, "x").gateway.listeners
    return listener


def test_who_is_asked_where() -> None:
    """Each at its own port, or where the table or the backend says; whatever the mode is."""
    found = read(document('[listener.scrape]\npreset = "vllm"'))
    assert found.scrape is not None
    assert found.scrape.preset == "vllm"
    assert dict(found.scrape.inputs)["queue"] == PRESETS["vllm"]["queue"]
    assert found.told_age_ns == 10 * S
    (service,) = scraped_services([found], {("front", "b1"): 7, ("front", "b2"): 8})
    assert service.mode is not Mode.INLINE  # of which the router looks at nothing that is told
    assert service.scrape == found.scrape
    at = [(each.id, scraped_endpoint(found.scrape, each)) for each in service.backends]
    assert at == [(7, Endpoint(0x7F000001, 8000)), (8, Endpoint(LOOPBACK_IPV6, 9))]
    found = read(
        document('[listener.scrape]\nqueue = "q"\nport = 9100', backend='scrape = "127.0.0.2:77"')
    )
    (service,) = scraped_services([found], {("front", "b1"): 7, ("front", "b2"): 8})
    assert service.scrape is not None
    at = [(each.id, scraped_endpoint(service.scrape, each)) for each in service.backends]
    assert at == [(7, Endpoint(0x7F000002, 77)), (8, Endpoint(LOOPBACK_IPV6, 9100))]
    assert not scraped_services([read(document(""))], {})


def test_how_long_it_holds() -> None:
    """As long as is said, or three times the interval."""
    slow = '[listener.scrape]\nqueue = "q"\ninterval = "20s"'
    assert read(document(slow)).told_age_ns == 60 * S
    assert read(document('[listener.score]\nage = "2s"')).told_age_ns == 2 * S


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            document('[listener.scrape]\npreset = "vllm"', kind="tls"),
            'listener.scrape: found it, expected type = "http" or "llm" beside it',
        ),
        (
            document("", backend='scrape = "127.0.0.1:9"'),
            "listener.backend.scrape: found an address of metrics, and nothing that is read there, "
            r"expected \[listener.scrape\]",
        ),
        (
            document('[listener.scrape]\nqueue = "q"', address="[::5]:80"),
            r"listener.backend.scrape: found none, and address \[::5\]:80",
        ),
        (
            document('[listener.scrape]\nqueue = "q"\ninterval="5s"\n[listener.score]\nage = "5s"'),
            r"listener.scrape.interval: found 5s, expected at most a third of score.age \(5s\)",
        ),
        (document('[listener.scrape]\npreset = "tgi"'), "listener.scrape.preset: .*'sglang'"),
        (document("[listener.scrape]"), "listener.scrape.preset: found nothing that is asked for"),
        (document('[listener.scrape]\nqueue = "q"\ninterval = "500ms"'), "interval: .*1s"),
    ],
)
def test_what_cannot_be(text: str, words: str) -> None:
    """It is named, with what would be right."""
    with pytest.raises(ConfigError, match=words):
        parse_config(text, "x")
