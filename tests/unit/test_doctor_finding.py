# SPDX-License-Identifier: Apache-2.0
"""Findings: which is the gravest, and that a question without an answer ends no others."""

from __future__ import annotations

from collections.abc import Iterator

from xdp_router.adapters.doctor_finding import Finding, Severity, fail, guarded, ok, warn, worst


def test_the_gravest() -> None:
    """One failure outweighs everything; nothing at all is in order."""
    good, bad, worse = ok("a", "x", "t"), warn("b", "x", "t", "m"), fail("c", "x", "t", "m")
    assert worst([]) is worst([good]) is Severity.OK
    assert worst([bad, good]) is Severity.WARN
    assert worst([good, worse, bad]) is Severity.FAIL


def test_a_question_that_cannot_be_answered() -> None:
    """What was found before stays, and the fault is a finding."""

    def question() -> Iterator[Finding]:
        yield ok("a", "x", "t")
        raise PermissionError(13, "Permission denied")

    found: list[Finding] = []
    guarded("eth0", question, found)
    guarded("eth0", lambda: [ok("b", "x", "t")], found)
    assert [each.code for each in found] == ["a", "not_checked", "b"]
    assert "Permission denied" in found[1].text
