# SPDX-License-Identifier: Apache-2.0
"""What a successor tells the process that started it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from xdp_router.core.errors import XdpRouterError
from xdp_router.daemon import former
from xdp_router.daemon.gateway.handover import HandoverError, ask
from xdp_router.daemon.main import main


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The end that is read; the other one is named in the environment."""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    monkeypatch.setenv(former.VARIABLE, str(write))
    yield read
    os.close(read)


def exit_of(cause: Exception) -> click.exceptions.Exit:
    """As the command line makes it of an error."""
    error = click.exceptions.Exit(1)
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (XdpRouterError("no such file"), "no such file"),
        (click.UsageError("no such option"), "no such option"),
        (exit_of(XdpRouterError("stopped")), "stopped"),
        (click.exceptions.Exit(0), ""),
        (ValueError("wrong"), "ValueError: wrong"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (XdpRouterError("x" * 20_000), "x" * former.TEXT_MAX),
    ],
)
def test_what_ends_it_is_told(pipe: int, error: BaseException, text: str) -> None:
    """And then the pipe is closed, which was nobody's else meanwhile."""
    number = int(os.environ[former.VARIABLE])

    def work() -> None:
        with former.told():
            assert former.is_waiting()
            assert former.VARIABLE not in os.environ
            assert not os.get_inheritable(number)
            raise error

    with pytest.raises(type(error)):
        work()
    assert not former.is_waiting()
    assert os.read(pipe, 1 << 16).decode() == text
    assert os.read(pipe, 1) == b""


def test_of_what_serves_nothing_is_told(pipe: int) -> None:
    """Also if it fails much later."""

    def work() -> None:
        with former.told():
            former.done()
            former.done()
            assert os.read(pipe, 1) == b""
            raise XdpRouterError("later")

    with pytest.raises(XdpRouterError, match="later"):
        work()


def test_a_former_one_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads: what ends the process is what it was."""
    read, write = os.pipe()
    monkeypatch.setenv(former.VARIABLE, str(write))
    os.close(read)
    with pytest.raises(XdpRouterError, match="why"), former.told():
        raise XdpRouterError("why")


@pytest.mark.parametrize("value", ["", "2", "x", "-1", "9" * 30, "1000000", "FILE"])
def test_no_pipe_of_ours(monkeypatch: pytest.MonkeyPatch, value: str, tmp_path: Path) -> None:
    """Whatever somebody has put into the environment."""
    with (tmp_path / "file").open("w") as file:
        monkeypatch.setenv(former.VARIABLE, value.replace("FILE", str(file.fileno())))
        with former.told():
            assert not former.is_waiting()
        assert not file.closed
        file.write("open")


def test_the_command_line_tells(pipe: int, tmp_path: Path) -> None:
    """A configuration that cannot be read."""
    missing = tmp_path / "none.toml"
    assert CliRunner().invoke(main, ["gateway", "--config", str(missing)]).exit_code == 2
    assert os.read(pipe, 1 << 16).decode().startswith(f"{missing}: cannot be read: No such file")


def test_a_successor_is_no_first_one(pipe: int, tmp_path: Path) -> None:
    """If the former one is gone when it is asked, as when it was told to stop, so is this one."""
    with former.told(), pytest.raises(HandoverError, match="that started this one has ended"):
        asyncio.run(ask(tmp_path / "gw.sock"))
    assert os.read(pipe, 1) == b""
