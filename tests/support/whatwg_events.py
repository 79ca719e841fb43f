# SPDX-License-Identifier: Apache-2.0
"""Event streams as the WHATWG standard words it, one character after the other: slow and plain."""

from __future__ import annotations


def events_of(stream: bytes) -> list[bytes]:
    """The data of the events that a whole stream dispatches."""
    text = stream.decode("latin-1").removeprefix("\xef\xbb\xbf")
    lines = []
    line = ""
    at = 0
    while at < len(text):
        if text[at] in "\r\n":
            lines.append(line)
            line = ""
            if text[at : at + 2] == "\r\n":
                at += 1
        else:
            line += text[at]
        at += 1
    # A last line without an end is of an event that is never dispatched.
    events = []
    buffer = ""
    for line in lines:
        if line == "":
            if buffer != "":
                events.append(buffer[:-1].encode("latin-1"))
            buffer = ""
            continue
        if line[0] == ":":
            continue
        field, _, value = line.partition(":")
        if value[:1] == " ":
            value = value[1:]
        if field == "data":
            buffer += value + "\n"
    return events
