# SPDX-License-Identifier: Apache-2.0
"""Chooses between the two ways from C source to loaded program."""

from __future__ import annotations

from xdp_router import ebpf
from xdp_router.adapters.dataplane import Loader
from xdp_router.adapters.loader_bcc import BccLoader
from xdp_router.adapters.loader_object import ObjectLoader

CHOICES = ("auto", "object", "bcc")


def make_loader(choice: str) -> Loader:
    """The loader for ``auto`` (the object if there is one), ``object`` or ``bcc``.

    Raises ebpf.ObjectNotBuilt for ``object`` without an object.
    """
    if choice == "bcc" or (choice == "auto" and not ebpf.OBJECT_PATH.exists()):
        return BccLoader(ebpf.source_files(), ebpf.MAIN_SOURCE, ebpf.BCC_INCLUDE)
    return ObjectLoader(ebpf.object_bytes())
