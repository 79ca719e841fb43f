# SPDX-License-Identifier: Apache-2.0
"""Which backends a request may go to: the first route that fits, then who has the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdp_router.core.listeners import Listener, Route

from .candidates import Candidates
from .errors import MessageError


class Routes:
    """The routes of one listener. Without any, all its backends are everybody's."""

    def __init__(self, listener: Listener) -> None:
        self._routes = listener.routes
        self._everybody = tuple(range(len(listener.backends)))
        self._models = [frozenset(each.models) for each in listener.backends]
        self._named = frozenset[str]().union(*self._models)
        self._found: dict[tuple[int, str | None], Candidates | None] = {}
        self.wants_headers = frozenset(
            name.encode() for route in listener.routes for name, _ in route.headers
        )
        """Names of the headers that routes look at, lower case."""

    def find(
        self, name: str, path: str, headers: Mapping[str, str], model: str | None
    ) -> tuple[str, Candidates]:
        """Name of the route, and the backends that have the model (None: none is asked for).

        ``name``: host, lower case, without port. ``headers``: those that are wanted, names in
        lower case. Raises MessageError (404) if no route fits, or nobody has the model.
        """
        for number, route in enumerate(self._routes):
            if _fits(route, name, path, headers, model):
                return route.name, self._with_model(number, route.backends, model)
        if self._routes:
            raise MessageError(404, "no route of this listener fits the request")
        return "", self._with_model(-1, self._everybody, model)

    def _with_model(self, route: int, backends: Sequence[int], model: str | None) -> Candidates:
        # Of names that no backend has told, which clients make up, there is one entry for all.
        named = None if model is None or not self._named else model if model in self._named else ""
        key = route, named
        if key not in self._found:
            models = self._models
            having = [
                each
                for each in backends
                if named is None or not models[each] or named in models[each]
            ]
            self._found[key] = Candidates(having) if having else None
        found = self._found[key]
        if found is None:
            raise MessageError(404, "no backend has the model that is asked for")
        return found


def _fits(
    route: Route, name: str, path: str, headers: Mapping[str, str], model: str | None
) -> bool:
    return (
        (not route.names or any(_is_named(name, each) for each in route.names))
        and path.startswith(route.path)
        and all(headers.get(key) == value for key, value in route.headers)
        and (not route.models or model in route.models)
    )


def _is_named(name: str, pattern: str) -> bool:
    if pattern.startswith("*."):
        return name.endswith(pattern[1:]) and len(name) > len(pattern) - 1
    return name == pattern
