# SPDX-License-Identifier: Apache-2.0
"""``--loader auto|object|bcc``: which of the two ways the program is loaded."""

from __future__ import annotations

from pathlib import Path

from xdp_router import ebpf

from .bpf_ctypes import UnsupportedHost
from .dataplane import Loader
from .loader_bcc import BccLoader, bcc_available
from .loader_object import ObjectLoader

CHOICES = ("auto", "object", "bcc")


def make_loader(choice: str, object_path: Path = ebpf.OBJECT_PATH) -> Loader:
    """The loader of that name; ``auto`` takes the object if there is one, else bcc.

    Raises UnsupportedHost, with the mend, when neither is to be had, or not the one wanted;
    ValueError for another name.
    """
    if choice not in CHOICES:
        raise ValueError(f"loader {choice!r}: expected one of {', '.join(CHOICES)}")
    built = object_path.exists()
    if choice == "object" or (choice == "auto" and built):
        if not built:
            raise UnsupportedHost(
                f"{object_path}: the compiled XDP program is missing: "
                "run 'make build', or choose --loader bcc"
            )
        try:
            return ObjectLoader(object_path.read_bytes())
        except OSError as cause:
            raise UnsupportedHost(
                f"{object_path}: the compiled XDP program cannot be read: {cause.strerror}: "
                "install the package again, or choose --loader bcc"
            ) from cause
    if choice == "auto" and not bcc_available():
        raise UnsupportedHost(
            f"no way to load the XDP program: {object_path} is missing (run 'make build'), "
            "and bcc is not installed (python3-bpfcc or python3-bcc)"
        )
    try:
        sources = ebpf.source_files()
    except OSError as cause:
        raise UnsupportedHost(
            f"{ebpf.FOLDER}: the sources of the XDP program cannot be read: {cause.strerror}: "
            "install the package again"
        ) from cause
    return BccLoader(sources, ebpf.MAIN_SOURCE, ebpf.BCC_INCLUDE)
