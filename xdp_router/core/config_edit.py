# SPDX-License-Identifier: Apache-2.0
"""Edits of a configuration: ``service`` and ``backend`` ``add``, ``set`` and ``remove``.

They change a document as TOML has it, whoever made it of the text, and know nothing of what keys
mean: that is checked by reading the whole document afterwards.
"""

from __future__ import annotations

import enum
import tomllib
from collections.abc import Iterable, Mapping, MutableMapping, MutableSequence
from dataclasses import dataclass, field
from typing import Any

from .config import RouterConfig
from .errors import XdpRouterError

_SHOWN = 10
TABLES: Mapping[str, tuple[str, ...]] = {"service": ("score", "scrape"), "backend": ()}
"""What a service or backend has that is a table, beside its backends."""

Tables = MutableSequence[MutableMapping[str, Any]]


class EditError(XdpRouterError):
    """There is nothing that could be edited so."""


class Verb(enum.Enum):
    """What is done."""

    ADD = "add"
    SET = "set"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Edit:
    """``what``: "service" or "backend". ``name``: whose; of a backend that is added: its service's.

    ``keys``: those of the file with their values; None: the key goes, its default holds. A dot
    leads into a table of it: ``score.rtt``.
    ``backends``: of a service that is added.
    """

    what: str
    verb: Verb
    name: str = ""
    keys: Mapping[str, Any] = field(default_factory=dict)
    backends: tuple[Mapping[str, Any], ...] = ()


def apply_edit(document: MutableMapping[str, Any], config: RouterConfig, edit: Edit) -> None:
    """Change ``document``, which ``config`` was read from. Raises EditError: nothing was changed.

    What it makes of the document may be no configuration.
    """
    services: Tables = document["service"]
    if edit.what == "service":
        if edit.verb is Verb.ADD:
            backends_said = [_said(each, "backend") for each in edit.backends]
            new = _said(edit.keys, edit.what)
            services.append({**new, "backend": backends_said} if backends_said else new)
            return
        place = _find("service", edit.name, [service.name for service in config.services])
        _change(services, place, edit)
        return
    if edit.verb is Verb.ADD:
        place = _find("service", edit.name, [service.name for service in config.services])
        if config.services[place].listener:
            raise EditError(
                f"service {edit.name} is taken up by the gateway, so it has no backends: give its "
                f"listener {config.services[place].listener} another one, in the file"
            )
        services[place]["backend"].append(_said(edit.keys, edit.what))
        return
    places = {
        backend.name: (index, place)
        for index, service in enumerate(config.services)
        for place, backend in enumerate(service.backends)
    }
    _find("backend", edit.name, list(places))
    index, place = places[edit.name]
    backends: Tables = services[index]["backend"]
    if edit.verb is Verb.REMOVE and len(backends) == 1:
        raise EditError(
            f"{edit.name} is the only backend of service {config.services[index].name}: add "
            "another one first, or remove the service"
        )
    _change(backends, place, edit)


def _change(tables: Tables, place: int, edit: Edit) -> None:
    if edit.verb is Verb.REMOVE:
        if len(tables) == 1:
            raise EditError(f"{edit.name} is the only {edit.what}: a router needs one")
        del tables[place]
        return
    for key in edit.keys:
        _require_table({**tables[place], **edit.keys}, key, edit.what)
    for key, value in edit.keys.items():
        _put(tables[place], key, value)


def _said(keys: Mapping[str, Any], what: str) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in keys.items():
        _require_table(table, key, what)
        _put(table, key, value)
    return table


def _require_table(table: Mapping[str, Any], key: str, what: str) -> None:
    """Raise EditError unless what stands before a key's dot is a table, or may become one."""
    head, dot, rest = key.partition(".")
    if not dot:
        return
    if head not in TABLES[what]:
        known = ", ".join(f"{each}.KEY" for each in TABLES[what]) or "no such keys here"
        raise EditError(f"{key}: {head!r} is no table of a {what}; there are: {known}")
    if not rest or "." in rest:
        raise EditError(f"{key}: expected one key of the table {head}, as {head}.KEY")
    if table.get(head) is not None and not isinstance(table[head], Mapping):
        raise EditError(f"{key}: {head} is no table here, but {table[head]!r}: take it away first")


def _put(table: MutableMapping[str, Any], key: str, value: Any) -> None:
    """Set a key, in the table that its dot leads into; None takes it away, and an empty table
    with it."""
    head, dot, rest = key.partition(".")
    if not dot:
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
    elif value is not None:
        if head not in table:
            table[head] = {}
        table[head][rest] = value
    elif head in table:
        table[head].pop(rest, None)
        if not table[head]:
            del table[head]


def _find(what: str, name: str, names: list[str]) -> int:
    if name in names:
        return names.index(name)
    known = ", ".join(names[:_SHOWN])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    raise EditError(f"no {what} is called {name!r}; there are {known}{more}")


# As words of a command


def parse_keys(words: Iterable[str]) -> dict[str, Any]:
    """``KEY=VALUE`` words. Raises ValueError.

    A value is TOML, or else text: ``weight=3``, ``deadline=50ms``, ``allow=["198.18.0.0/16"]``,
    ``score.rtt=0.5``. An empty one (``fallback=``) is None.
    """
    keys: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not key or not equals:
            raise ValueError(f"{word!r}: expected KEY=VALUE, as weight=3")
        if key in keys:
            raise ValueError(f"{key!r} is given twice")
        keys[key] = parse_value(text)
    return keys


def parse_value(text: str) -> Any:
    """A value as TOML, or the text itself where it is none; None: it is empty."""
    if not text:
        return None
    try:
        found = tomllib.loads(f"value = {text}\n")
    except (tomllib.TOMLDecodeError, RecursionError, ValueError):
        return text
    if found.keys() != {"value"} or not isinstance(found["value"], (bool, int, float, str, list)):
        return text
    return found["value"]
