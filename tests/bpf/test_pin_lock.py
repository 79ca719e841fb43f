# SPDX-License-Identifier: Apache-2.0
"""The lock on a root of pins, on a real bpffs."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from xdp_router.adapters import pin_lock
from xdp_router.adapters.pin_lock import PinLock, PinsBusy, pins_locked

pytest_plugins = ("tests.support.netns",)


def test_one_at_a_time(bpffs: Path) -> None:
    """The second gets it when the first has let go."""
    root = bpffs / "xr"
    first, second = PinLock(root), PinLock(root)
    assert first.try_lock()
    assert first.try_lock()
    assert not second.try_lock()
    assert PinLock(bpffs / "other").try_lock()
    first.release()
    first.release()
    assert second.try_lock()
    second.release()


def test_waiting(bpffs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is waited for; after too long the directory is named."""
    lock = PinLock(bpffs)
    assert lock.try_lock()
    release = threading.Timer(0.2, lock.release)
    release.start()
    begun = time.monotonic()
    with pins_locked(bpffs):
        assert time.monotonic() - begun > 0.1
    release.join()
    assert lock.try_lock()
    monkeypatch.setattr(pin_lock, "WAIT_S", 0.05)
    with pytest.raises(PinsBusy, match=rf"{bpffs}/v\d+: another xdp-routerd"), pins_locked(bpffs):
        pass
    lock.release()


def test_where_nothing_can_be_pinned(tmp_path: Path) -> None:
    """Nothing is locked, and nothing is made there: pinning itself says what is wrong."""
    lock = PinLock(tmp_path / "xr")
    assert lock.try_lock()
    assert not (tmp_path / "xr").exists()
    lock.release()
