# SPDX-License-Identifier: Apache-2.0
"""Which loader is taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from xdp_router import ebpf
from xdp_router.adapters import loader as loaders
from xdp_router.adapters.bpf_ctypes import UnsupportedHost
from xdp_router.adapters.loader import make_loader


def test_auto_takes_the_object_if_there_is_one(tmp_path: Path) -> None:
    """With an object: object. Without: bcc. Asked for by name: that one."""
    missing = tmp_path / "missing.o"
    assert make_loader("auto").name == "object"
    assert make_loader("auto", {4: missing, 6: missing}).name == "bcc"
    assert make_loader("object", ebpf.OBJECT_PATHS).name == "object"
    assert make_loader("bcc").name == "bcc"


def test_a_missing_object_is_named_with_the_mend(tmp_path: Path) -> None:
    """Asked for the object and not built: the file, and what to do."""
    with pytest.raises(UnsupportedHost, match=r"missing\.o.*make build.*--loader bcc"):
        make_loader("object", dict.fromkeys((4, 6), tmp_path / "missing.o"))


def test_neither_is_to_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No object and no bcc: both mends are named."""
    monkeypatch.setattr(loaders, "bcc_available", lambda: False)
    with pytest.raises(UnsupportedHost, match=r"make build.*python3-bpfcc"):
        make_loader("auto", dict.fromkeys((4, 6), tmp_path / "missing.o"))


def test_an_unknown_loader_is_refused() -> None:
    """A name that is none of the three."""
    with pytest.raises(ValueError, match="auto, object, bcc"):
        make_loader("llvm")
