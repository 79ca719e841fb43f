# SPDX-License-Identifier: Apache-2.0
"""What a listener's mode gains over its control arm, on the traffic that there is.

Both arms have requests of all kinds, told apart by chance alone. What is compared is what clients
wait for: from a request's first byte to its first token (``llm``), to the first byte of its answer
(``http``), or to a connection (``tls``). Of each arm all requests count that had one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from xdp_router.core.listeners import Listener, ListenerKind
from xdp_router.daemon.gain_view import gain_view, in_ms
from xdp_router.measure.experiment import CONFIDENCE, Gain, gain
from xdp_router.measure.histogram import Histogram
from xdp_router.measure.window import Earlier

from .totals import Figures, histogram_of

ARM_TIMES: Final = "arm_times"
"""The figure that workers tell of it: by names of listener and arm."""
CONTROL: Final = "control"
QUANTILES: Final = {"p50": 0.5, "p99": 0.99}
_MEASURED: Final = {
    ListenerKind.TLS: "connection",
    ListenerKind.HTTP: "first byte",
    ListenerKind.LLM: "first token",
}

_Spreads = Mapping[tuple[str, ...], Mapping[str, Any]]


class Arms:
    """Of all listeners, in the last hour."""

    def __init__(self, now_ns: int) -> None:
        self._now: _Spreads = {}
        self._then: _Spreads = {}
        self._earlier: Earlier[_Spreads] = Earlier({}, now_ns)

    def look(self, figures: Figures, now_ns: int) -> None:
        """These are the sums over all workers now."""
        self._now = {tuple(labels): value for labels, value in figures.get(ARM_TIMES, ())}
        self._then = self._earlier.note(self._now, now_ns)

    def times(self, listener: Listener) -> tuple[Histogram, Histogram]:
        """Of the mode, and of the control arm."""
        mode, control = (
            self._times((listener.name, arm)) for arm in (listener.mode.name.lower(), CONTROL)
        )
        return mode, control

    def _times(self, key: tuple[str, str]) -> Histogram:
        now, then = self._now.get(key), self._then.get(key)
        if now is None:
            return Histogram()
        times = histogram_of(now)
        return times if then is None else times.less(histogram_of(then))

    def gains(self, listener: Listener) -> Iterator[tuple[str, Gain]]:
        """By quantile; none while an arm has nothing."""
        mode, control = self.times(listener)
        for name, share in QUANTILES.items():
            found = gain(mode, control, share)
            if found is not None:
                yield name, found

    def view(self, listener: Listener) -> dict[str, Any]:
        """For ``status``, of a listener with a control arm; null where there is nothing yet."""
        mode, control = self.times(listener)
        found = dict(self.gains(listener))
        return {
            "listener": listener.name,
            "mode": listener.mode.name.lower(),
            "percent": listener.control_arm,
            "measured": _MEASURED[listener.kind],
            "confidence": CONFIDENCE,
            "arms": {"mode": _arm(mode), CONTROL: _arm(control)},
            "gain": {name: gain_view(found[name]) if name in found else None for name in QUANTILES},
        }


def _arm(times: Histogram) -> dict[str, Any]:
    told: dict[str, Any] = {"count": times.count}
    for name, share in QUANTILES.items():
        told[f"{name}_ms"] = in_ms(times.quantile(share)) if times.count else None
    return told
