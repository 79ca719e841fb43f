# SPDX-License-Identifier: Apache-2.0
"""Which backends a request may go to."""

from __future__ import annotations

import pytest

from tests.support.listeners import listener
from xdp_router.gateway.candidates import Candidates
from xdp_router.gateway.errors import MessageError
from xdp_router.gateway.routes import Routes

ROUTED = """
[[listener.route]]
name = "canary"
headers = { X-Canary = "yes" }
backends = ["c"]
[[listener.route]]
name = "api"
names = ["api.example", "*.api.example"]
path = "/v1/"
backends = ["a", "b"]
[[listener.route]]
name = "model"
models = ["big"]
backends = ["b"]
"""


def find(text: str, model: str | None = None) -> object:
    """What the routes of a listener say to a request that has nothing but a model."""
    return shown(Routes(listener(text, kind="llm")).find("", "/", {}, model))


def shown(found: tuple[str, Candidates]) -> tuple[str, tuple[int, ...]]:
    """Name and indices."""
    return found[0], found[1].indices


def test_without_routes_everybody_may_have_it() -> None:
    """All backends, under no name."""
    assert find("") == ("", (0, 1, 2))


@pytest.mark.parametrize(
    ("name", "path", "headers", "expected"),
    [
        ("api.example", "/v1/x", {}, ("api", (0, 1))),
        ("x.api.example", "/v1/", {}, ("api", (0, 1))),
        ("x.y.api.example", "/v1/", {}, ("api", (0, 1))),
        ("other", "/", {"x-canary": "yes"}, ("canary", (2,))),
        ("api.example", "/v1/x", {"x-canary": "yes"}, ("canary", (2,))),
    ],
)
def test_the_first_one_that_fits(
    name: str, path: str, headers: dict[str, str], expected: object
) -> None:
    """All conditions of a route have to hold; the order of the file decides."""
    found = Routes(listener(ROUTED, kind="llm")).find(name, path, headers, None)
    assert shown(found) == expected


@pytest.mark.parametrize(
    ("name", "path", "headers"),
    [
        ("api.example", "/v2/", {}),
        ("notapi.example", "/v1/", {}),
        (".api.example", "/v1/", {}),
        ("other", "/", {"x-canary": "YES"}),
        ("", "/", {}),
    ],
)
def test_none_that_fits_is_a_404(name: str, path: str, headers: dict[str, str]) -> None:
    """Routes are a list of all that is served."""
    with pytest.raises(MessageError) as error:
        Routes(listener(ROUTED, kind="llm")).find(name, path, headers, None)
    assert error.value.status == 404


def test_a_route_may_go_by_the_model() -> None:
    """As any other condition."""
    assert find(ROUTED, model="big") == ("model", (1,))
    with pytest.raises(MessageError):
        find(ROUTED, model="small")


def test_only_who_has_the_model() -> None:
    """A backend that names none has them all; if nobody has it, that is said."""
    routes = Routes(listener("", kind="llm", models={"a": ["m", "n"], "b": ["n"], "c": ["x"]}))
    assert shown(routes.find("", "/", {}, "n")) == ("", (0, 1))
    assert shown(routes.find("", "/", {}, "m")) == ("", (0,))
    with pytest.raises(MessageError, match="no backend has the model"):
        routes.find("", "/", {}, "z")
    mixed = Routes(listener("", kind="llm", models={"a": ["m"]}))
    assert shown(mixed.find("", "/", {}, "z")) == ("", (1, 2))


def test_candidates_are_the_same_object_each_time() -> None:
    """What one request has found is of use to the next one; names that clients make up cost
    nothing."""
    routes = Routes(listener("", kind="llm", models={"a": ["m"]}))
    of_m = routes.find("", "/", {}, "m")[1]
    others = {id(routes.find("", "/", {}, f"model-{number}")[1]) for number in range(50)}
    assert routes.find("", "/", {}, "m")[1] is of_m
    assert len(others) == 1
    assert id(of_m) not in others
    nobody_says = Routes(listener("", kind="llm"))
    assert nobody_says.find("", "/", {}, "m")[1] is nobody_says.find("", "/", {}, "x")[1]


def test_it_says_which_headers_it_looks_at() -> None:
    """So that others need not be looked for."""
    assert Routes(listener(ROUTED, kind="llm")).wants_headers == {b"x-canary"}
