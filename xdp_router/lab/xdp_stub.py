# SPDX-License-Identifier: Apache-2.0
"""XDP programs that treat every frame alike.

An XDP program on a veth end starts NAPI there. That makes the end take redirected frames without
GRO, which a user-space delay line can't have: AF_PACKET can't send merged frames on.
"""

from __future__ import annotations

from .bpf_code import R1, R2, Code, ProgramType

XDP_DROP = 1
XDP_PASS = 2

_HELPER_REDIRECT = 23


def load_constant(action: int) -> int:
    """Load a program that answers every frame with ``action``; the caller closes the fd."""
    code = Code()
    code.end(action)
    return code.install("xr_lab_const", ProgramType.XDP)


def load_redirect(ifindex: int) -> int:
    """Load a program that redirects every frame to ``ifindex``; the caller closes the fd."""
    code = Code()
    code.set(R1, ifindex)
    code.set(R2, 0)
    code.call(_HELPER_REDIRECT)
    code.leave()
    return code.install("xr_lab_redir", ProgramType.XDP)
