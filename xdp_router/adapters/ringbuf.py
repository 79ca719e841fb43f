# SPDX-License-Identifier: Apache-2.0
"""Consumer of a BPF ring buffer, by mmap, without a library call a record."""

from __future__ import annotations

import mmap
import threading
from platform import machine

from .bpf_ctypes import BpfError

_BUSY = 1 << 31
_DISCARD = 1 << 30
_LENGTH = _DISCARD - 1
_HEADER = 8  # u32 length with the two flag bits, u32 page offset

# The kernel writes a record, then clears its BUSY bit; it writes a header, then the producer
# position. x86 loads are not reordered with loads, nor a store with an earlier load. Elsewhere
# a lock, taken and released, is the barrier that Python has.
_STRONGLY_ORDERED = machine() in ("x86_64", "i686", "s390x")


class RingBuffer:
    """Reads one ring buffer map; the only reader that it may have.

    The fd becomes readable (``EPOLLIN``, level-triggered) when there is something to drain.
    """

    __slots__ = (
        "_barrier",
        "_consumer",
        "_consumer_page",
        "_data",
        "_fd",
        "_headers",
        "_mask",
        "_producer",
        "_producer_pages",
    )

    def __init__(self, fd: int, size: int) -> None:
        """``fd`` stays the caller's. ``size``: the map's max_entries, in bytes.

        Raises BpfError when the map cannot be mapped.
        """
        page = mmap.PAGESIZE
        self._fd = fd
        self._mask = size - 1
        try:
            self._consumer_page = mmap.mmap(
                fd, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=0
            )
            # The kernel maps the data twice in a row, so that a record at the end goes on.
            self._producer_pages = mmap.mmap(
                fd, page + 2 * size, mmap.MAP_SHARED, mmap.PROT_READ, offset=page
            )
        except OSError as error:
            raise BpfError(error.errno or 0, "map the ring buffer into memory") from error
        # Casts, so that a position or header is read and written by one load or store.
        self._consumer = memoryview(self._consumer_page).cast("Q")
        pages = memoryview(self._producer_pages)
        self._producer = pages[:8].cast("Q")
        self._data = pages[page:]
        self._headers = self._data.cast("I")
        self._barrier = None if _STRONGLY_ORDERED else threading.Lock()

    def fileno(self) -> int:
        """For ``add_reader``."""
        return self._fd

    def drain(self, limit: int) -> list[bytes]:
        """Take up to ``limit`` records, in order. Discarded ones are skipped and not counted.

        Stops at a record that is still being written; it makes the fd readable again.
        """
        position = self._consumer[0]
        end = self._producer[0]
        if position == end:
            return []
        records: list[bytes] = []
        data, headers, mask, barrier = self._data, self._headers, self._mask, self._barrier
        if barrier:
            with barrier:
                pass
        while position < end and len(records) < limit:
            offset = position & mask
            header = headers[offset >> 2]
            if header & _BUSY:
                break
            if barrier:
                with barrier:
                    pass
            length = header & _LENGTH
            if not header & _DISCARD:
                start = offset + _HEADER
                records.append(bytes(data[start : start + length]))
            position += (length + _HEADER + 7) & ~7
        # Only now may the kernel reuse the space: the copies above are done.
        if barrier:
            with barrier:
                pass
        self._consumer[0] = position
        return records

    @property
    def backlog(self) -> int:
        """Bytes that wait to be drained."""
        return self._producer[0] - self._consumer[0]

    def close(self) -> None:
        """Unmap. The fd stays open."""
        for view in (self._headers, self._data, self._producer, self._consumer):
            view.release()
        self._consumer_page.close()
        self._producer_pages.close()
