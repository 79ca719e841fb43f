# SPDX-License-Identifier: Apache-2.0
"""Errors of the gateway's protocols."""

from __future__ import annotations

from xdp_router.core.errors import XdpRouterError
from xdp_router.gateway.errors import MessageError


def test_a_message_error_says_what_to_answer_and_why() -> None:
    """Status and reason are there for the answer, the text for a log; its family is ours."""
    error = MessageError(431, "a request head that is too long")
    assert (error.status, error.reason) == (431, "a request head that is too long")
    assert str(error) == error.reason
    assert isinstance(error, XdpRouterError)
