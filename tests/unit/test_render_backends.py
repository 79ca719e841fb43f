# SPDX-License-Identifier: Apache-2.0
"""The table of backends, by what each one's mode goes by."""

from __future__ import annotations

import pytest

from tests.support.cli_samples import BACKENDS
from xdp_router.cli.render_backends import backends

Capture = pytest.CaptureFixture[str]

INLINE = {"mode": "inline", "rtt_us": None, "wins": 0, "answers": 0, "losses": 0, "weight": 3}


def _lines(capsys: Capture) -> list[str]:
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_backends_show_their_share(capsys: Capture) -> None:
    """Of a mode that has a table; none is not the same as nothing known."""
    picked = {"mode": "snapshot", "share": 0.0, "score": 0.25}
    backends([{**BACKENDS[0], **picked}, {**BACKENDS[1], **picked, "share": 0.004}])
    lines = _lines(capsys)
    title = "BACKEND SERVICE ADDRESS STATE VIA PROBE RTT SHARE SCORE ANSWERS LOSSES"
    assert lines[0].split() == title.split()
    assert lines[1].split()[-4:] == ["0%", "0.25", "1.2k", "0"]
    assert "0.4%" in lines[2].split()
    backends([{**BACKENDS[0], **picked}, BACKENDS[1]])
    assert {"SHARE", "WINS"} <= set(capsys.readouterr().out.splitlines()[0].split())
    backends(BACKENDS)
    assert "SHARE" not in _lines(capsys)[0]


def test_backends_say_whose_metrics_are_not_read(capsys: Capture) -> None:
    """Below the table, beside who is down."""
    failed = {"url": "http://198.19.1.2:8000/metrics", "error": "refused", "missing": []}
    backends([{**BACKENDS[0], "scrape": failed}, BACKENDS[1]])
    last = " ".join(_lines(capsys)[-2:])
    assert "b1: metrics of http://198.19.1.2:8000/metrics are not read: refused" in last
    assert "b2 is down" in last


def test_inline_shows_what_it_goes_by(capsys: Capture) -> None:
    """Weight, open flows, and how soon first packets are answered: nothing of probes."""
    backends([{**BACKENDS[0], **INLINE, "synack_us": 95.0}])
    lines = _lines(capsys)
    assert lines[0] == "BACKEND SERVICE ADDRESS STATE VIA PROBE WEIGHT OPEN ANSWERS IN"
    assert lines[1] == "b1 web 198.19.1.2:8080 up be1 syn 3 17 95 µs"
    backends([{**BACKENDS[0], **INLINE, "synack_us": None}])
    assert _lines(capsys)[1].endswith("syn 3 17 -")


def test_beside_other_modes_each_has_its_own(capsys: Capture) -> None:
    """What a mode does not have is a dash, not a zero."""
    backends([BACKENDS[0], {**BACKENDS[0], **INLINE, "name": "i1", "synack_us": 95.0}])
    title, raced, inline = _lines(capsys)
    assert title.endswith("PROBE RTT WINS ANSWERS LOSSES WEIGHT OPEN ANSWERS IN")
    assert raced.endswith("syn 850 µs 1.2k 1.2k 0 1 17 830 µs")
    assert inline.endswith("syn - - - - 3 17 95 µs")
    picked = {**BACKENDS[0], "mode": "snapshot", "share": 1.0, "score": 1.0}
    backends([BACKENDS[0], picked])
    assert _lines(capsys)[2].endswith("100% 1.00 - 1.2k 0")


def test_the_time_to_a_handshake_is_no_round_trip_of_a_probe(capsys: Capture) -> None:
    """A backend that no probe has measured has no RTT."""
    backends([{**BACKENDS[0], "rtt_us": None}])
    assert " syn - " in _lines(capsys)[1]
