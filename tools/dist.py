# SPDX-License-Identifier: Apache-2.0
"""Build sdist and wheel into a folder: ``python tools/dist.py FOLDER``.

Calls the build backend itself, so nothing is fetched. Run it in the root of the checkout.
"""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import build_meta

OBJECTS = tuple(
    Path("ebpf", name) for name in ("xdp_router.bpf.o", "xdp_router6.bpf.o", "gateway_lookup.bpf.o")
)


def main() -> None:
    """Build both; refuse when the compiled program is not there."""
    if len(sys.argv) != 2:
        sys.exit("usage: python tools/dist.py FOLDER")
    for each in OBJECTS:
        if not each.exists():
            # A wheel without it would install and then need a compiler on the router.
            sys.exit(f"dist: {each} is missing. Run: make build")
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for built in (build_meta.build_sdist(str(folder)), build_meta.build_wheel(str(folder))):
        print(folder / built)


if __name__ == "__main__":
    main()
