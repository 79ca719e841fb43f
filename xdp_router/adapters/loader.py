# SPDX-License-Identifier: Apache-2.0
"""``--loader auto|object|bcc``: which of the two ways the program is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from xdp_router import ebpf

from .bpf_ctypes import UnsupportedHost
from .loader_bcc import BccLoader, bcc_available
from .loader_object import ObjectLoader

CHOICES = ("auto", "object", "bcc")


def make_loader(
    choice: str, objects: Mapping[int, Path] = ebpf.OBJECT_PATHS
) -> ObjectLoader | BccLoader:
    """The loader of that name; ``auto`` takes the object if there is one, else bcc.

    Raises UnsupportedHost, with the mend, when neither is to be had, or not the one wanted;
    ValueError for another name.
    """
    if choice not in CHOICES:
        raise ValueError(f"loader {choice!r}: expected one of {', '.join(CHOICES)}")
    missing = next((path for path in objects.values() if not path.exists()), None)
    built = missing is None
    if choice == "object" or (choice == "auto" and built):
        if not built:
            raise UnsupportedHost(
                f"{missing}: the compiled XDP program is missing: "
                "run 'make build', or choose --loader bcc"
            )
        try:
            return ObjectLoader(objects[4].read_bytes(), objects[6].read_bytes())
        except OSError as cause:
            raise UnsupportedHost(
                f"{cause.filename}: the compiled XDP program cannot be read: {cause.strerror}: "
                "install the package again, or choose --loader bcc"
            ) from cause
    if choice == "auto" and not bcc_available():
        raise UnsupportedHost(
            f"no way to load the XDP program: {missing} is missing (run 'make build'), "
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
