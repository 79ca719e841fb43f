# SPDX-License-Identifier: Apache-2.0
"""The packet corpus: tables of what the program has to do with a frame, in which state."""

from . import (
    bound,
    budget,
    closing,
    credible,
    degrade,
    first,
    foreign,
    full,
    handoff,
    handshake,
    icmp,
    icmp_sent,
    isn,
    orphans,
    probes,
    restart,
    takeover,
)

CASES = [
    *bound.CASES,
    *credible.CASES,
    *closing.CASES,
    *first.CASES,
    *degrade.CASES,
    *budget.CASES,
    *handshake.CASES,
    *isn.CASES,
    *orphans.CASES,
    *probes.CASES,
    *foreign.CASES,
    *icmp.CASES,
    *icmp_sent.CASES,
    *handoff.CASES,
    *full.CASES,
    *restart.CASES,
    *takeover.CASES,
]
