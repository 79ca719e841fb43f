# SPDX-License-Identifier: Apache-2.0
"""A process that was started as the successor of one that runs, and tells it why it failed.

The running one waits at the other end of a pipe, whose number is in the environment.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, MutableMapping
from typing import Final

import click

from xdp_router.core.errors import XdpRouterError

VARIABLE: Final = "XDP_ROUTER_UPGRADE_FD"
TEXT_MAX: Final = 16 << 10
"""Bytes of an error's text: a pipe holds more, so nobody waits."""

_waiting: list[int] = []


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Have the former one, if there is one, told what ends the block."""
    fd = _pipe(os.environ)
    if fd is None:
        yield
        return
    _waiting.append(fd)
    try:
        yield
    except BaseException as error:
        if _waiting:
            with contextlib.suppress(OSError):  # it has ended
                os.write(fd, _text(error).encode(errors="replace")[:TEXT_MAX])
        raise
    finally:
        done()


def is_waiting() -> bool:
    """Whether a former one waits for this process to serve."""
    return bool(_waiting)


def done() -> None:
    """It is told no more. Calling it again does nothing."""
    while _waiting:
        os.close(_waiting.pop())


def _pipe(environment: MutableMapping[str, str]) -> int | None:
    """Taken out of the environment, which is that of the processes that we start."""
    text = environment.pop(VARIABLE, "")
    if not (text.isascii() and text.isdigit()) or int(text) < 3:
        return None
    try:
        if not stat.S_ISFIFO(os.fstat(int(text)).st_mode):
            return None
        os.set_inheritable(int(text), False)
    except (OSError, OverflowError):
        return None
    return int(text)


def _text(error: BaseException) -> str:
    if isinstance(error, click.exceptions.Exit | SystemExit):
        return "" if error.__cause__ is None else _text(error.__cause__)
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, XdpRouterError):
        return str(error)
    name = type(error).__name__
    return f"{name}: {error}" if str(error) else name
