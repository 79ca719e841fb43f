# SPDX-License-Identifier: Apache-2.0
"""What ``doctor`` says: one finding a question, with cause and mend."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from xdp_router.core.errors import XdpRouterError

from .host_checks import HostWarning


class Severity(enum.Enum):
    """``FAIL``: attaching, or forwarding, does not work like this. ``WARN``: it works worse than
    it could, or not for everybody."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """``subject`` is what it is about (``host``, an interface, a service ...), ``text`` what is
    so and what follows from it, ``mend`` what to do; empty when there is nothing to do."""

    code: str
    severity: Severity
    subject: str
    text: str
    mend: str = ""


def ok(code: str, subject: str, text: str) -> Finding:
    """Nothing to do."""
    return Finding(code, Severity.OK, subject, text)


def warn(code: str, subject: str, text: str, mend: str) -> Finding:
    """Something that costs speed, or some of the traffic."""
    return Finding(code, Severity.WARN, subject, text, mend)


def fail(code: str, subject: str, text: str, mend: str) -> Finding:
    """Something that must be mended first."""
    return Finding(code, Severity.FAIL, subject, text, mend)


def from_warning(warning: HostWarning) -> Finding:
    """What ``attach`` warns about, as a finding."""
    return warn(warning.code, warning.interface, warning.text, warning.mend)


def guarded(
    subject: str, question: Callable[[], Iterable[Finding]], findings: list[Finding]
) -> None:
    """Add what a question finds. One that cannot be answered is a finding and ends no others."""
    try:
        findings.extend(_each(question))
    except (XdpRouterError, OSError) as error:
        findings.append(
            warn("not_checked", subject, f"cannot be looked at: {error}", "run it as root")
        )


def _each(question: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    yield from question()


def worst(findings: Iterable[Finding]) -> Severity:
    """The gravest severity among them; OK when there are none."""
    order = list(Severity)
    return max((each.severity for each in findings), key=order.index, default=Severity.OK)
