# SPDX-License-Identifier: Apache-2.0
"""``xdp-routerd``, and ``python -m xdp_router.daemon``: what is there before all else.

The imports take a third of a second, and Ctrl-C has to end them like everything later.
"""

from __future__ import annotations

import os
import signal

EXIT_INTERRUPTED = 128 + signal.SIGINT


def main() -> None:
    """Run the command line."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _interrupted)
    from .main import main as command

    signal.signal(signal.SIGINT, before)
    command(prog_name="xdp-routerd")


def _interrupted(*_: object) -> None:
    # Nothing was begun, so there is nothing to undo; an exception would pass through imports.
    os.write(2, b"Interrupted.\n")
    os._exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
