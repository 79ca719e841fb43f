# SPDX-License-Identifier: Apache-2.0
"""The conversations' client: ``python -m bench.ttft.client TARGET --rate R --seconds S --nonce N``,
a line of JSON for each request, in order (``bench.gateway.answers.Call``)."""

from __future__ import annotations

import argparse
import gc
import sys

from bench.gateway.client import Plan, address, run

from . import workload

_TIMEOUT_S = 30.0


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 when all could be said, whatever has come of the requests."""
    parser = argparse.ArgumentParser(prog="bench.ttft.client", description=__doc__)
    parser.add_argument("targets", nargs="+", type=address, metavar="HOST:PORT")
    parser.add_argument("--rate", type=float, default=50.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nonce", default="", help="in all prompts")
    options = parser.parse_args(argv)
    turns = workload.schedule(options.rate, options.seconds, options.seed, options.nonce)
    plan = Plan(options.targets, timeout_s=_TIMEOUT_S)
    gc.disable()  # all is kept until the end anyway
    for call in run(plan, [(turn.due_ns, turn.request()) for turn in turns]):
        call.gaps_ns, call.transit_ns = [], []
        print(call.line())
    return 0


if __name__ == "__main__":
    sys.exit(main())
