# SPDX-License-Identifier: Apache-2.0
"""What the mode gains over the control arm, and what the method costs, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def gain_line(service: Mapping[str, Any]) -> str:
    """Below the table of services; empty where there is no control arm."""
    view = service.get("first_byte") or {}
    control = view.get("control_arm")
    if not control:
        return ""
    by = str(control["by"]).replace("_", " ")
    head = f"control arm, {control['percent']} % of new flows by {by}:"
    gain = control["gain_p99_ms"]
    if gain is None:
        return f"{head} nothing to compare yet"
    arms = view["arms"]
    told = f"{head} first byte p99 {arms['control']['p99_ms']:g} ms, with the mode "
    flows = f"of {arms['mode']['count']} and {arms['control']['count']} flows"
    return f"{told}{arms['mode']['p99_ms']:g} ms; {_gained(gain, control['confidence'], flows)}"


def arm_lines(view: Mapping[str, Any]) -> list[str]:
    """Of a listener of the gateway: a line for each quantile."""
    arms, mode = view["arms"], view["mode"]
    head = f"{view['listener']}: control arm, {view['percent']} % of requests by turns"
    lines = []
    for name, found in view["gain"].items():
        if found is None:
            return [f"{head}: nothing to compare yet"]
        flows = f"of {arms['mode']['count']} and {arms['control']['count']} requests"
        lines.append(
            f"  {view['measured']} {name} {arms['control'][f'{name}_ms']:g} ms, with {mode} "
            f"{arms['mode'][f'{name}_ms']:g} ms; "
            f"{_gained(found['gain_ms'], view['confidence'], flows)}"
        )
    return [head, *lines]


def _gained(gain: Mapping[str, float | None], share: float, flows: str) -> str:
    """The difference, how sure that is, and of how many."""
    estimate = gain["estimate"] or 0.0
    told = _difference(estimate)
    if gain["low"] is None or gain["high"] is None:
        return f"{told} ({flows}: too few to say how sure that is)"
    span = _span(gain["low"], gain["high"], estimate)
    return f"{told} ({round(100 * share)} %: {span}, {flows})"


def _difference(gain_ms: float) -> str:
    if gain_ms == 0:
        return "that makes no difference"
    return f"it gains {gain_ms:g} ms" if gain_ms > 0 else f"it is {-gain_ms:g} ms slower"


def _span(low_ms: float, high_ms: float, gain_ms: float) -> str:
    """From end to end; which way is said where it is not the one that was said before."""
    if low_ms >= 0 and gain_ms >= 0:
        return f"{low_ms:g} to {high_ms:g} ms"
    if high_ms <= 0 and gain_ms <= 0:
        return f"{-high_ms:g} to {-low_ms:g} ms{'' if gain_ms else ' slower'}"
    return f"{_side(low_ms)} to {_side(high_ms)}"


def _side(gain_ms: float) -> str:
    return f"{abs(gain_ms):g} ms {'slower' if gain_ms < 0 else 'faster'}"


def costs(status: Mapping[str, Any]) -> str:
    """For ``status``."""
    kept, probing = status.get("flow_binding_retention"), status.get("probe_overhead")
    told = []
    if kept is not None:
        told.append(f"{100 * kept:.4g} % of flows kept their binding")
    if probing is not None:
        percent = 100 * probing
        text = f"{percent:.0f}" if percent >= 100 else f"{percent:.2g}"
        told.append(f"probing took {text} % of the bytes")
    return ", ".join(told) or "nothing to tell yet"
