# SPDX-License-Identifier: Apache-2.0
"""The backends' wires: by the delay-line process only where there is something to delay.

A line is a process that shares the CPUs with what is measured, and a race asks all backends at
once: what the lines take would be taken from the router.
"""

from __future__ import annotations

import os

from xdp_router.lab import Lab, links, xdp_stub

_NEAR, _FAR = "a", "b"
"""A delay line's ends: towards the router, and towards the backend."""


def lay(lab: Lab, number: int, *, delayed: bool) -> None:
    """Backend ``number``, counted from 0: what it sends gets to the router by the kernel alone,
    what it gets passes the line if it is ``delayed``."""
    namespace = lab.delays[number]
    if namespace is None:
        raise ValueError(f"backend {number} is wired directly")
    ends = {end: links.ifindex(namespace, end) for end in (_NEAR, _FAR)}
    programs = {
        _FAR: xdp_stub.load_redirect(ends[_NEAR]),
        _NEAR: xdp_stub.load_constant(xdp_stub.XDP_PASS)
        if delayed
        else xdp_stub.load_redirect(ends[_FAR]),
    }
    for end, program in programs.items():
        links.attach_xdp(namespace, end, program)
        os.close(program)
