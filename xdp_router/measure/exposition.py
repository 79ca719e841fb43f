# SPDX-License-Identifier: Apache-2.0
"""Metrics as the text that Prometheus reads, in pieces that take no time worth mentioning."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Final

from prometheus_client import exposition, metrics_core

from .catalogue import Kind, Metric
from .histogram import Buckets

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
SAMPLES_AT_ONCE: Final = 100
"""About a millisecond; less, where what they are read from takes time."""
STEP_NS: Final = 1_000_000
_NS: Final = 1e9

Value = float | Buckets
"""A histogram's values are Buckets of nanoseconds."""
Sample = tuple[Sequence[str], Value]
"""Label values in the order of the metric, and the value."""


class _Family:
    """What the renderer of prometheus_client wants of a registry."""

    def __init__(self, family: metrics_core.Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[metrics_core.Metric]:
        return [self._family]


def pieces(
    families: Iterable[tuple[Metric, Iterable[Sample | None]]],
    stopwatch: Callable[[], int] = lambda: 0,
) -> Generator[bytes, None, None]:
    """The text of all families in turn. A metric without a value is left out.

    Samples are asked for as the text is, so they may be read from wherever they are meanwhile. None
    among them is no sample, but was work: a piece may be empty. ``stopwatch`` is in nanoseconds.
    """
    for metric, samples in families:
        begun = False
        for some in _in_steps(samples, stopwatch):
            if not some:
                yield b""
                continue
            text = exposition.generate_latest(_Family(_family(metric, some)))
            if begun:
                # HELP and TYPE stand before the first sample only.
                lines = text.splitlines(keepends=True)
                text = b"".join(line for line in lines if not line.startswith(b"#"))
            begun = True
            yield text


def _in_steps(
    samples: Iterable[Sample | None], stopwatch: Callable[[], int]
) -> Iterator[list[Sample]]:
    """So many samples as one step has time for."""
    some: list[Sample] = []
    looked, until_ns = 0, stopwatch() + STEP_NS
    for sample in samples:
        looked += 1
        if sample is not None:
            some.append(sample)
            if isinstance(sample[1], Buckets):
                looked += SAMPLES_AT_ONCE // 5  # as many lines
        if looked >= SAMPLES_AT_ONCE or stopwatch() > until_ns:
            yield some
            some = []
            looked, until_ns = 0, stopwatch() + STEP_NS
    if some:
        yield some


def _family(metric: Metric, samples: Sequence[Sample]) -> metrics_core.Metric:
    name, text, labels = metric.full_name, metric.help, metric.labels
    if metric.kind is Kind.HISTOGRAM:
        histogram = metrics_core.HistogramMetricFamily(name, text, labels=labels)
        for values, value in samples:
            assert isinstance(value, Buckets)
            bounds = [(repr(bound / _NS), float(count)) for bound, count in value.cumulative()]
            histogram.add_metric(
                values, [*bounds, ("+Inf", float(value.count))], sum_value=value.total / _NS
            )
        return histogram
    kind = (
        metrics_core.CounterMetricFamily
        if metric.kind is Kind.COUNTER
        else metrics_core.GaugeMetricFamily
    )
    family = kind(name, text, labels=labels)
    for values, value in samples:
        assert not isinstance(value, Buckets)
        family.add_metric(values, value)
    return family
