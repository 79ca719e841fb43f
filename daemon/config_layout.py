# SPDX-License-Identifier: Apache-2.0
"""The form of an edited configuration file: what was put in stands apart, and a comment stays with
the table that it stands above. Only lines that an edit has added or taken away are touched."""

from __future__ import annotations

from difflib import SequenceMatcher


def laid_out(old: str, new: str) -> str:
    """``new``, which an edit has made of ``old``, in a form that a person would have given it. Both
    end with an end of line."""
    end = "\r\n" if "\r\n" in old else "\n"
    before, after = _lines(old), _lines(new)
    head, tail = _common(before, after)
    was, now = before[head : len(before) - tail], after[head : len(after) - tail]
    out = before[:head]
    position = head  # in ``before``
    for what, i1, i2, j1, j2 in SequenceMatcher(None, was, now, autojunk=False).get_opcodes():
        out += before[position : head + i1]
        position = head + i2
        if what == "equal":
            out += was[i1:i2]
        elif what == "replace":
            out += _ended(now[j1:j2], end)
        elif what == "delete":
            first, position = _slid(before, head + i1, head + i2)
            del out[len(out) - (head + i1 - first) :]
            out += _comment(before[first:position], before[position:])
            while position == len(before) and out and not out[-1].strip():
                del out[-1]  # what stood between
        else:
            _put_in(out, _ended(now[j1:j2], end), before[position:], end)
    return "".join(out + before[position:])


def _lines(text: str) -> list[str]:
    """Each with its end."""
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1].removesuffix("\n")
    return lines if lines[-1] else lines[:-1]


def _ended(lines: list[str], end: str) -> list[str]:
    """What an edit adds, with the ends that the file's own lines have."""
    if end == "\n":
        return lines
    return [line if line.endswith(end) else line.replace("\n", end) for line in lines]


def _common(before: list[str], after: list[str]) -> tuple[int, int]:
    """How many lines at the head and at the tail are the same."""
    most = min(len(before), len(after))
    head = 0
    while head < most and before[head] == after[head]:
        head += 1
    tail = 0
    while tail < most - head and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    return head, tail


def _slid(lines: list[str], first: int, end: int) -> tuple[int, int]:
    """The same lines taken away, beginning as early as they may: at a header, not behind one that
    the next table has, too."""
    while first and lines[first - 1] == lines[end - 1]:
        first, end = first - 1, end - 1
    return first, end


def _comment(gone: list[str], rest: list[str]) -> list[str]:
    """The comment at the end of what goes, if it is that of the table that is next."""
    if not rest or not _is_header(rest[0]):
        return []
    count = 0
    while count < len(gone) and _is_comment(gone[-1 - count]):
        count += 1
    apart = count < len(gone) and not gone[-1 - count].strip()
    return gone[len(gone) - count :] if count and apart else []


def _put_in(out: list[str], added: list[str], rest: list[str], end: str) -> None:
    """Append what was added: keys to what their table has, a table before the comment of the one
    that is next."""
    if not any(map(_is_header, added)):
        behind: list[str] = []
        if not rest or _is_header(rest[0]):
            while out and (_is_comment(out[-1]) or not out[-1].strip()):
                behind.insert(0, out.pop())
        out += [*added, *behind]
        return
    comment: list[str] = []
    while rest and _is_header(rest[0]) and out and _is_comment(out[-1]):
        comment.insert(0, out.pop())
    while added and not added[0].strip():
        del added[0]
    while added and not added[-1].strip():
        del added[-1]
    for line in added:
        if _is_header(line) and out and out[-1].strip():
            out.append(end)
        out.append(line)
    following = [*comment, *rest[:1]]
    if following and following[0].strip():
        out.append(end)
    out += comment


def _is_header(line: str) -> bool:
    return line.lstrip().startswith("[")


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")
