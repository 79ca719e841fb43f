# SPDX-License-Identifier: Apache-2.0
"""One look at a backend: what an interval has shown of it."""

from __future__ import annotations

from dataclasses import dataclass

from .health import Ill
from .model import Signs


@dataclass(frozen=True, slots=True)
class Seen:
    """What an interval has shown. ``heard`` False: nothing; else ``why`` None: it is well."""

    heard: bool
    why: Ill | None = None


NOTHING = Seen(False)


def of_traffic(signs: Signs, contradicted: bool) -> Seen:
    """What a backend's flows have shown. ``contradicted``: a probe has just had there what they
    ask for; then the word of a single source prefix does not count: it may be that one which
    is attacked, or kept out, or which asks so that it is cut.
    """
    lasting = max(signs.answered - signs.cut, 0)
    if signs.served:
        return Seen(True)
    if signs.refused + signs.cut > lasting:
        why = Ill.REFUSED
    elif signs.answered:
        return Seen(True)
    elif signs.unreachable:
        why = Ill.UNREACHABLE
    elif signs.unanswered:
        why = Ill.UNANSWERED
    else:
        return NOTHING
    return NOTHING if contradicted and signs.sources < 2 else Seen(True, why)


def sum_of(one: Signs, other: Signs) -> Signs:
    """What came of both."""
    return Signs(
        one.answered + other.answered,
        one.served + other.served,
        one.unanswered + other.unanswered,
        one.refused + other.refused,
        one.cut + other.cut,
        one.unreachable + other.unreachable,
        0,
        one.sources + other.sources,
    )
