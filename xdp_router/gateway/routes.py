# SPDX-License-Identifier: Apache-2.0
"""Which backends a request may go to: the first route that fits, then who has the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdp_router.core.listeners import Listener, Route

from .errors import MessageError


class Routes:
    """The routes of one listener. Without any, all its backends are everybody's."""

    def __init__(self, listener: Listener) -> None:
        self._routes = listener.routes
        self._everybody = tuple(range(len(listener.backends)))
        self._models = [frozenset(each.models) for each in listener.backends]
        self._has_models = any(self._models)
        self.wants_headers = frozenset(
            name.encode() for route in listener.routes for name, _ in route.headers
        )
        """Names of the headers that routes look at, lower case."""

    def find(
        self, name: str, path: str, headers: Mapping[str, str], model: str | None
    ) -> tuple[str, Sequence[int]]:
        """Name of the route, and indices of backends that have the model (None: none is asked for).

        ``name``: host, lower case, without port. ``headers``: those that are wanted, names in
        lower case. Raises MessageError (404) if no route fits, or nobody has the model.
        """
        for route in self._routes:
            if _fits(route, name, path, headers, model):
                found: Sequence[int] = route.backends
                label = route.name
                break
        else:
            if self._routes:
                raise MessageError(404, "no route of this listener fits the request")
            found, label = self._everybody, ""
        if model is not None and self._has_models:
            models = self._models
            found = [each for each in found if not models[each] or model in models[each]]
            if not found:
                raise MessageError(404, "no backend has the model that is asked for")
        return label, found


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
