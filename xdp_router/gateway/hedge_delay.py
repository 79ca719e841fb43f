# SPDX-License-Identifier: Apache-2.0
"""How long to wait for a first token before a second backend is asked beside the first.

The delay is a quantile of what requests for the same model took lately: with 0.93, about one
request in fourteen is hedged, whatever the model. A long prompt takes longer than a short one by
its length alone, so lengths are classes (each four times the one below) with a window each, once
there is enough in it.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from xdp_router.core.quantile import percentile

DEFAULT_QUANTILE = 0.93

# A quantile of fewer is one of them by chance.
LEAST_SAMPLES = 16

# Names of models come from requests: whoever is asked for most seldom goes.
MAX_MODELS = 256

# A window is sorted again after so many samples: at 20 µs not for every request.
_RENEW = 8
_SIZES = 17


class _Window:
    __slots__ = ("_delay_ns", "_fresh", "_samples")

    def __init__(self, length: int) -> None:
        self._samples: deque[int] = deque(maxlen=length)
        self._delay_ns = 0
        self._fresh = 0

    def note(self, sample_ns: int) -> None:
        self._samples.append(sample_ns)
        self._fresh -= 1

    def delay_ns(self, quantile: float) -> int | None:
        if len(self._samples) < LEAST_SAMPLES:
            return None
        if self._fresh <= 0:
            self._fresh = _RENEW
            self._delay_ns = percentile(self._samples, quantile)
        return self._delay_ns


class HedgeDelay:
    """Delays by model, from the newest ``window`` samples of each class.

    ``initial_ns`` holds until there are 16 samples; no delay is below ``least_ns`` or above
    ``most_ns``. A ``quantile`` of 0 means no delay at all: everybody is asked at once. Raise
    ValueError for what cannot be.
    """

    __slots__ = ("_initial_ns", "_least_ns", "_models", "_most_ns", "_quantile", "_window")

    def __init__(
        self,
        quantile: float = DEFAULT_QUANTILE,
        *,
        window: int = 128,
        initial_ns: int = 1_000_000_000,
        least_ns: int = 1_000_000,
        most_ns: int = 30_000_000_000,
    ) -> None:
        if not 0.0 <= quantile < 1.0:
            raise ValueError(f"quantile: expected 0 to below 1, found {quantile}")
        if window < LEAST_SAMPLES:
            raise ValueError(f"window: expected {LEAST_SAMPLES} or more, found {window}")
        if not 0 < least_ns <= most_ns:
            raise ValueError(f"delays of {least_ns} to {most_ns} ns: expected 0 < least <= most")
        self._quantile = quantile
        self._window = window
        self._initial_ns = initial_ns
        self._least_ns = least_ns
        self._most_ns = most_ns
        # The first window of a model is of all its samples, the others are of one size each.
        self._models: OrderedDict[str, list[_Window | None]] = OrderedDict()

    def note(self, model: str, elapsed_ns: int, size: int = 0) -> None:
        """What the *first* leg of a request took to its first token, or until it was cancelled.

        A leg that was cancelled since its hedge won would have taken longer: it was past the
        delay, and stays above it here. Leaving it out would shorten the delay with each win, to
        the end that everything is hedged. ``size``: bytes of the prompt.
        """
        windows = self._models.get(model)
        if windows is None:
            windows = self._models[model] = [None] * (_SIZES + 1)
            if len(self._models) > MAX_MODELS:
                self._models.popitem(last=False)
        else:
            self._models.move_to_end(model)
        for place in (0, _class_of(size)):
            window = windows[place]
            if window is None:
                window = windows[place] = _Window(self._window)
            window.note(elapsed_ns)

    def delay_ns(self, model: str, size: int = 0) -> int:
        """How long to wait for the first leg of a request."""
        if not self._quantile:
            return 0
        delay = None
        windows = self._models.get(model)
        if windows is not None:
            for place in (_class_of(size), 0):
                window = windows[place]
                delay = window.delay_ns(self._quantile) if window is not None else None
                if delay is not None:
                    break
        if delay is None:
            delay = self._initial_ns
        return min(max(delay, self._least_ns), self._most_ns)

    def __len__(self) -> int:
        """How many models are remembered."""
        return len(self._models)


def _class_of(size: int) -> int:
    return 1 + min(size.bit_length() // 2, _SIZES - 1)
