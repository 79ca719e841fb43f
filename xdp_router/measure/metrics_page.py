# SPDX-License-Identifier: Apache-2.0
"""A page of metrics that comes in pieces, of which a few are wanted.

A server's page has thousands of lines, and parsing one takes some 10 us: what is not wanted is not
parsed, nor kept. Lines are those of the Prometheus text format, 0.0.4.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from prometheus_client.parser import text_string_to_metric_families

LINE_MAX = 16 << 10
KEPT_MAX = 2_000
"""Wanted lines: a metric that has more series is not what a score is made of."""


class PageError(ValueError):
    """It is no page of metrics; the text says why."""


class MetricsPage:
    """``names``: those of samples that are wanted."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(name.encode() for name in names)
        self._starts = tuple(self._names)
        self._rest = b""
        self._kept: list[bytes] = []

    def feed(self, data: bytes) -> None:
        """Take the next piece. Raises PageError for what cannot be one."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > LINE_MAX:
            raise PageError(f"a line of more than {LINE_MAX} bytes: this is no page of metrics")
        for line in lines:
            self._line(line)

    def _line(self, line: bytes) -> None:
        if not line.startswith(self._starts):
            return
        name = line.partition(b"{")[0].partition(b" ")[0].partition(b"\t")[0]
        if name in self._names:
            if len(self._kept) >= KEPT_MAX:
                raise PageError(f"more than {KEPT_MAX} samples of the metrics that are wanted")
            self._kept.append(line)

    def samples(self) -> dict[str, list[tuple[Mapping[str, str], float]]]:
        """Labels and value of each wanted sample, by name. Raises PageError."""
        self._line(self._rest)
        self._rest = b""
        out: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        try:
            text = b"\n".join((*self._kept, b"")).decode()
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    out.setdefault(sample.name, []).append((sample.labels, sample.value))
        except (ValueError, KeyError, IndexError) as error:  # what the parser says of bad lines
            raise PageError(f"not in the text format of Prometheus: {error}") from error
        return out
