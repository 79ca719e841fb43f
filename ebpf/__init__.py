# SPDX-License-Identifier: Apache-2.0
"""The XDP program as data: the built object, and its C sources for the bcc loader."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent
"""Where the C sources are; in site-packages they are data of this package."""

OBJECT_PATHS = {4: FOLDER / "xdp_router.bpf.o", 6: FOLDER / "xdp_router6.bpf.o"}
"""The compiled program of each address family."""
LOOKUP_PATH = FOLDER / "gateway_lookup.bpf.o"
"""The compiled program that leads connections to the gateway's sockets; of both families."""
MAIN_SOURCE = "xdp_router.bpf.c"
LOOKUP_SOURCE = "gateway_lookup.bpf.c"
BCC_INCLUDE = FOLDER / "bcc_include"
"""Stand-ins for the kernel headers that bcc's own helper header includes."""


class ObjectNotBuilt(FileNotFoundError):
    """The compiled program is not there; the message names the file and the mend."""


def object_bytes(family: int = 4) -> bytes:
    """Return the compiled XDP program, an ELF object for ``bpf_object__open_mem``.

    Raises ObjectNotBuilt when it was never compiled, other OSErrors when it cannot be read.
    """
    path = OBJECT_PATHS[family]
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise ObjectNotBuilt(
            f"{path}: the compiled XDP program is missing. Run 'make build', or choose --loader bcc"
        ) from error


def source_files() -> dict[str, str]:
    """Return the C sources: path relative to ``ebpf/`` -> text, the main source first.

    Holds both programs' sources, ``abi.h`` and all of ``lib/``; not ``bcc_include``.
    Raises OSError when one of these is missing or a file cannot be read.
    """
    headers = sorted([*FOLDER.glob("*.h"), *FOLDER.glob("lib/*.h")])
    files = [FOLDER / MAIN_SOURCE, FOLDER / LOOKUP_SOURCE, *headers]
    return {path.relative_to(FOLDER).as_posix(): path.read_text("utf-8") for path in files}
