# SPDX-License-Identifier: Apache-2.0
"""What the control socket answers about events and names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from tests.support.cast import T0, decision, first, service
from xdp_router.adapters.control import CommandError
from xdp_router.core.config import RouterConfig
from xdp_router.core.model import Mode, Reason
from xdp_router.daemon.app import Router
from xdp_router.daemon.event_feed import EventFeed
from xdp_router.daemon.event_views import EventViews, NameViews


def router() -> Router:
    feed = EventFeed(lambda _decision: {})
    feed.log_line({"event": "ready"})
    decisions = [decision(first(port), 1, Mode.RACE, Reason.RACE_WON, T0, []) for port in (1, 12)]
    made = SimpleNamespace(
        feed=feed,
        config=RouterConfig((service(3),)),
        engine=SimpleNamespace(decisions=decisions),
    )
    return cast(Router, made)


def test_events_are_kept_or_followed() -> None:
    """One is a list, the other a stream."""
    views = EventViews(router())
    newest = views.events({"limit": 5})
    assert isinstance(newest, Iterator)
    assert [each["event"] for each in newest] == ["ready"]
    assert isinstance(views.events({"follow": True}), AsyncIterator)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({"limit": 0}, "limit: expected a whole number from 1 to 2000"),
        ({"limit": True}, "limit: expected"),
        ({"names": "decision"}, "names: expected a list"),
        ({"names": [1]}, "names: expected a list"),
        ({"names": ["backend_don"]}, "no event is called 'backend_don': did you mean backend_down"),
        ({"names": ["x"], "follow": True}, "no event is called 'x'"),
    ],
)
def test_what_cannot_be_is_refused(args: dict[str, object], told: str) -> None:
    """With what would do."""
    with pytest.raises(CommandError, match=told):
        EventViews(router()).events(args)


def test_names_begin_as_what_was_typed() -> None:
    """Of each kind; an unknown kind is named."""
    views = NameViews(router())
    assert views.names({"kind": "service"}) == ["web"]
    assert views.names({"kind": "backend", "prefix": "b"}) == ["b1", "b2", "b3"]
    assert views.names({"kind": "backend", "prefix": "x"}) == []
    assert views.names({"kind": "backend", "service": "web"}) == ["b1", "b2", "b3"]
    assert views.names({"kind": "backend", "service": "other"}) == []
    assert views.names({"kind": "client"}) == ["198.18.0.1:1/tcp", "198.18.0.1:12/tcp"]
    assert views.names({"kind": "address", "prefix": "198.18.0.1:12"}) == ["198.18.0.1:12"]
    with pytest.raises(CommandError, match="kind: expected service, backend"):
        views.names({"kind": "weather"})
