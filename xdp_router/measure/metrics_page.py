# SPDX-License-Identifier: Apache-2.0
"""A page of metrics that comes in pieces, of which a few are wanted.

A server's page has thousands of lines, and parsing one takes some 10 us: what is not wanted is not
parsed, nor kept, and what is wanted is parsed a few lines at a time. Lines are those of the
Prometheus text format, 0.0.4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from prometheus_client.parser import text_string_to_metric_families

LINE_MAX = 16 << 10
WANTED_MAX = 4 << 10
"""Bytes of a line that is wanted: the parser needs a time that grows faster than the line."""
KEPT_MAX = 2_000
"""Wanted lines: a metric that has more series is not what a score is made of."""
KEPT_BYTES_MAX = 256 << 10
"""Of all wanted lines of a page: many pages may be under way at once."""
PARSED_LINES = 64
PARSED_BYTES = WANTED_MAX
"""What is parsed in one go, at most: about a millisecond."""
SHOWN = 80
"""Bytes of a bad line."""

_BAD = (ValueError, KeyError, IndexError, OverflowError)
"""What the parser raises for bad lines."""


class PageError(ValueError):
    """It is no page of metrics; the text says why."""


class MetricsPage:
    """``names``: those of samples that are wanted.

    First all of it is fed; then it is parsed, for as long as there is more; then ``samples`` has
    labels and value of each wanted sample, by name.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(name.encode() for name in names)
        self._starts = tuple(self._names)
        self._rest = b""
        self._kept: deque[bytes] = deque()
        self._kept_bytes = 0
        self.samples: dict[str, list[tuple[Mapping[str, str], float]]] = {}

    def feed(self, data: bytes) -> None:
        """Take the next piece. Raises PageError for what cannot be one."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines[-1]
        if len(max(lines, key=len)) > LINE_MAX:
            raise PageError(f"a line of more than {LINE_MAX} bytes: this is no page of metrics")
        del lines[-1]
        self._keep(lines)

    def _keep(self, lines: Iterable[bytes]) -> None:
        for line in [each for each in lines if each.startswith(self._starts)]:
            name = line.partition(b"{")[0].partition(b" ")[0].partition(b"\t")[0]
            if name not in self._names:
                continue
            if len(line) > WANTED_MAX:
                raise PageError(f"a line of more than {WANTED_MAX} bytes for {name.decode()}")
            self._kept.append(line)
            self._kept_bytes += len(line)
            if len(self._kept) > KEPT_MAX or self._kept_bytes > KEPT_BYTES_MAX:
                raise PageError(
                    f"more than {KEPT_MAX} samples, or {KEPT_BYTES_MAX >> 10} KiB, of the metrics "
                    "that are wanted: choose others"
                )

    def parse(self) -> bool:
        """Parse the next lines; returns whether there are more. Raises PageError."""
        self._keep([self._rest])  # the last line, which nothing ends
        self._rest = b""
        lines: list[bytes] = []
        room = PARSED_BYTES
        while self._kept and len(lines) < PARSED_LINES and len(self._kept[0]) <= room:
            lines.append(self._kept.popleft())
            room -= len(lines[-1])
        try:
            for name, labels, value in _read(lines):
                self.samples.setdefault(name, []).append((labels, value))
        except _BAD as error:
            text = _bad_of(lines)[:SHOWN].decode("utf-8", "replace")
            raise PageError(f"not in the text format of Prometheus: {text!r}") from error
        return bool(self._kept)


def _read(lines: Iterable[bytes]) -> Iterator[tuple[str, dict[str, str], float]]:
    text = b"\n".join((*lines, b"")).decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            # A whole number may be longer than any that the others could go with.
            yield sample.name, sample.labels, float(sample.value)


def _bad_of(lines: Sequence[bytes]) -> bytes:
    """The line of these that is at fault: the parser's words are for who reads its source."""
    for line in lines:
        try:
            for _ in _read((line,)):
                pass
        except _BAD:
            return line
    return b" ".join(lines)
