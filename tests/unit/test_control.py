# SPDX-License-Identifier: Apache-2.0
"""Control socket: server and client over a real unix socket."""

from __future__ import annotations

import asyncio
import grp
import itertools
import json
import os
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest

from xdp_router.adapters import control
from xdp_router.adapters.control import (
    CommandError,
    ControlError,
    ControlInUse,
    ControlServer,
    NoDaemon,
)
from xdp_router.adapters.control_client import ControlClient

_Result = TypeVar("_Result")


async def _slow(_args: Mapping[str, Any]) -> str:
    await asyncio.sleep(0.05)
    return "slept"


def _refuse(_args: Mapping[str, Any]) -> None:
    raise CommandError("no flow of 198.18.0.9:1 is known")


def _crash(_args: Mapping[str, Any]) -> None:
    raise KeyError("bug")


HANDLERS: dict[str, control.Handler] = {
    "echo": dict,
    "slow": _slow,
    "refuse": _refuse,
    "crash": _crash,
    "unencodable": lambda _args: object(),
    "big": lambda _args: "x" * (8 << 20),
}


def _with_server(
    path: Path,
    conversation: Callable[[], _Result],
    on_fault: Callable[[str, Exception], None] | None = None,
) -> _Result:
    """Run blocking client code in a thread while the server runs in the loop."""

    async def main() -> _Result:
        server = ControlServer(path, HANDLERS, on_fault)
        await server.start()
        try:
            return await asyncio.to_thread(conversation)
        finally:
            await server.close()

    return asyncio.run(main())


def _raw(path: Path, request: bytes) -> list[dict[str, Any]]:
    """Answers to raw bytes, sent by a client that then stops writing."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(5)
        sock.connect(str(path))
        sock.sendall(request)
        sock.shutdown(socket.SHUT_WR)
        return [json.loads(line) for line in sock.makefile("rb")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "control.sock"


def test_call_returns_data_of_plain_and_coroutine_handlers(path: Path) -> None:
    """Arguments reach the handler, its value comes back; one connection serves many calls."""

    def conversation() -> tuple[Any, Any]:
        with ControlClient(path) as client:
            return client.call("echo", client="198.18.0.2:4000", n=3), client.call("slow")

    assert _with_server(path, conversation) == ({"client": "198.18.0.2:4000", "n": 3}, "slept")


def test_socket_is_private_and_goes_with_the_server(path: Path) -> None:
    """The socket has mode 0660 while the daemon runs and is removed after it."""
    mode = _with_server(path, lambda: path.stat().st_mode)
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o660
    assert list(path.parent.iterdir()) == []


def test_refusal_reaches_the_caller_as_text(path: Path) -> None:
    """A handler's CommandError is the client's CommandError with the same text."""
    with pytest.raises(CommandError, match=r"no flow of 198\.18\.0\.9:1 is known"):
        _with_server(path, lambda: ControlClient(path).call("refuse"))


@pytest.mark.parametrize("command", ["crash", "unencodable"])
def test_fault_in_a_handler_is_answered_and_reported(path: Path, command: str) -> None:
    """An unexpected exception is an answer and a report; the server goes on."""
    faults: list[str] = []

    def conversation() -> object:
        with ControlClient(path) as client:
            with pytest.raises(CommandError, match=f"internal error in {command}"):
                client.call(command)
            return client.call("echo", still="here")

    result = _with_server(path, conversation, lambda name, _error: faults.append(name))
    assert result == {"still": "here"}
    assert faults == [command]


def test_unknown_command_lists_the_known_ones(path: Path) -> None:
    """A wrong command name is answered with those that exist."""
    with pytest.raises(CommandError, match=r"unknown command 'sttus'; known: .*echo.*slow"):
        _with_server(path, lambda: ControlClient(path).call("sttus"))


@pytest.mark.parametrize(
    ("request_line", "error"),
    [
        (b"not json\n", "not JSON"),
        (b"\xff\xfe\n", "not JSON"),
        (b"[" * 60000 + b"\n", "not JSON"),
        (b"[1]\n", "must be an object"),
        (b'{"command": 1}\n', "must be an object"),
        (b"{}\n", "must be an object"),
    ],
)
def test_bad_request_is_answered_and_the_connection_goes_on(
    path: Path, request_line: bytes, error: str
) -> None:
    """Garbage costs one error answer; the next request on the connection works."""
    request = request_line + b'{"command": "echo", "a": 1}\n'
    answers = _with_server(path, lambda: _raw(path, request))
    assert answers[0]["ok"] is False
    assert error in answers[0]["error"]
    assert answers[1] == {"ok": True, "data": {"a": 1}}


def test_overlong_request_is_refused(path: Path) -> None:
    """A request over 64 KiB is refused without being kept."""

    def conversation() -> bytes:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(5)
            sock.connect(str(path))
            try:
                sock.sendall(b"x" * 200_000)
            except OSError:
                pass  # the server has hung up already
            return sock.recv(4096)

    assert json.loads(_with_server(path, conversation)) == {
        "ok": False,
        "error": "request is longer than 65536 bytes",
    }


def test_unfinished_request_is_ignored(path: Path) -> None:
    """A connection cut inside a request runs nothing."""
    assert _with_server(path, lambda: _raw(path, b'{"command": "echo"}')) == []


def test_large_answer_arrives_whole_even_after_half_close(path: Path) -> None:
    """8 MB come through, also to a client that has stopped writing."""
    answers = _with_server(path, lambda: _raw(path, b'{"command": "big"}\n'))
    assert len(answers[0]["data"]) == 8 << 20


def test_client_that_does_not_read_blocks_nobody(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that leaves a large answer unread is cut off; others are served meanwhile."""
    monkeypatch.setattr(control, "_SLOW_CLIENT_S", 0.3)

    def conversation() -> int:
        with socket.socket(socket.AF_UNIX) as idler:
            idler.settimeout(5)
            idler.connect(str(path))
            idler.sendall(b'{"command": "big"}\n')
            assert ControlClient(path).call("echo", a=1) == {"a": 1}
            received = 0
            time.sleep(0.6)
            while chunk := idler.recv(1 << 20):
                received += len(chunk)
            return received

    assert _with_server(path, conversation) < 8 << 20


def test_live_daemon_is_not_replaced(path: Path) -> None:
    """A second daemon on the same path is refused by name; the first one stays."""

    async def main() -> None:
        first = ControlServer(path, HANDLERS)
        await first.start()
        second = ControlServer(path, HANDLERS)
        refusal = asyncio.create_task(second.start())
        with pytest.raises(ControlInUse, match=str(path)):
            await refusal
        await second.close()
        assert await asyncio.to_thread(ControlClient(path).call, "echo") == {}
        await first.close()

    asyncio.run(main())


def test_dead_daemons_socket_is_replaced(path: Path) -> None:
    """The socket file that a killed daemon left is taken over."""
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    assert path.exists()
    assert _with_server(path, lambda: ControlClient(path).call("echo", a=2)) == {"a": 2}


def test_other_file_on_the_path_is_left_alone(path: Path) -> None:
    """A file that is no socket is never removed."""
    path.parent.mkdir()
    path.write_text("mine")
    with pytest.raises(ControlError, match="is not a socket"):
        _with_server(path, lambda: None)
    assert path.read_text() == "mine"


def test_successors_socket_survives_the_predecessors_exit(path: Path) -> None:
    """A daemon that ends removes only the socket that it made."""

    async def main() -> None:
        server = ControlServer(path, HANDLERS)
        await server.start()
        await asyncio.to_thread(path.unlink)
        await asyncio.to_thread(path.write_text, "another's")
        await server.close()

    asyncio.run(main())
    assert path.read_text() == "another's"


def test_missing_daemon_is_said_with_the_mend(path: Path) -> None:
    """Without a daemon the error names the path and how to start one."""
    with pytest.raises(NoDaemon) as error:
        ControlClient(path).call("status")
    assert str(path) in str(error.value)
    assert "sudo xdp-routerd attach IFACE" in str(error.value)


def test_a_path_that_is_no_socket(tmp_path: Path) -> None:
    """It is said that it is none, and nobody is sent to start a daemon."""
    (tmp_path / "file").touch()
    with pytest.raises(ControlError, match="file is not a socket: name the daemon's with"):
        ControlClient(tmp_path / "file").call("status")


def test_too_many_connections_are_told(path: Path) -> None:
    """Who comes when all places are taken learns that, and is served when one is free again."""

    def conversation() -> Any:
        idle = []
        for _ in range(64):
            idle.append(socket.socket(socket.AF_UNIX))
            idle[-1].connect(str(path))
        for _ in range(3):
            with pytest.raises(CommandError, match=r"busy: too many connections \(64\)"):
                ControlClient(path).call("echo", a=1)
        for sock in idle:
            sock.close()
        time.sleep(0.1)
        return ControlClient(path).call("echo", a=1)

    assert _with_server(path, conversation) == {"a": 1}


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\n", b"{}\n", b'"x"\n', b""])
def test_other_server_on_the_path_is_an_error(path: Path, answer: bytes) -> None:
    """What doesn't answer like the daemon gives a clear error, never a wrong value."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(answer)
        writer.close()

    async def main(call: Callable[[], Any]) -> Any:
        path.parent.mkdir()
        server = await asyncio.start_unix_server(serve, path)
        async with server:
            return await asyncio.to_thread(call)

    with pytest.raises(ControlError, match=r"did not answer like|lost the daemon"):
        asyncio.run(main(lambda: ControlClient(path).call("status")))


def test_silent_daemon_times_out(path: Path) -> None:
    """A daemon that hangs is reported after the timeout."""
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as hung:
        hung.bind(str(path))
        hung.listen()
        with pytest.raises(ControlError, match="did not answer within"):
            ControlClient(path, timeout_s=0.2).call("status")


def test_group_of_the_socket(tmp_path: Path) -> None:
    """The socket is its owner's and the given group's, and nobody else's."""
    mine = os.getgroups() or [os.getgid()]
    group = mine[-1] if os.geteuid() else 54_321
    path = tmp_path / "control.sock"

    async def start_and_stop() -> os.stat_result:
        server = ControlServer(path, HANDLERS, group=group)
        await server.start()
        try:
            return path.stat()
        finally:
            await server.close()

    found = asyncio.run(start_and_stop())
    assert (found.st_uid, found.st_gid) == (os.geteuid(), group)
    assert stat.S_IMODE(found.st_mode) == 0o660


ASK = """
import os, sys
from xdp_router.adapters.control import CommandError
from xdp_router.adapters.control_client import ControlClient
os.setgroups([]); os.setgid(54321); os.setuid(54322)
with ControlClient(sys.argv[1]) as client:
    print(client.call("echo", x=1))
    try:
        print(client.call("drain"))
    except CommandError as error:
        print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's process is started: needs root")
def test_only_root_may_change_things() -> None:
    """A member of the socket's group may ask; what changes the router is told to need sudo."""
    directory = Path(tempfile.mkdtemp())  # pytest's own is closed to others
    directory.chmod(0o755)
    path = directory / "control.sock"

    async def run() -> str:
        server = ControlServer(
            path, HANDLERS, group=54_321, changing={"drain": lambda _args: "done"}
        )
        await server.start()
        try:
            with ControlClient(path) as client:
                assert await asyncio.to_thread(client.call, "drain") == "done"
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-c", ASK, str(path), stdout=asyncio.subprocess.PIPE
            )
            return (await child.communicate())[0].decode()
        finally:
            await server.close()

    try:
        said, refused = asyncio.run(run()).splitlines()
    finally:
        directory.rmdir()
    assert said == "{'x': 1}"
    assert refused == "drain changes the router, which is root's: run the command with sudo"


def test_names_of_groups() -> None:
    """A group is known by name or number; an unknown one is refused with the mend."""
    name = grp.getgrgid(0).gr_name
    assert (control.group_id(name), control.group_id("54321")) == (0, 54_321)
    with pytest.raises(ControlError, match="no-such-group: there is no such group: .*groupadd"):
        control.group_id("no-such-group")
    for number in ("4294967295", "99999999999", "9" * 5000):
        with pytest.raises(ControlError, match="there is no such group"):
            control.group_id(number)


def test_a_path_that_is_too_long_is_refused_with_its_length(tmp_path: Path) -> None:
    """107 bytes are taken by server and client; one more is refused by both, with the mend."""
    room = 107 - len(str(tmp_path)) - 1
    good, bad = tmp_path / ("c" * room), tmp_path / ("c" * (room + 1))

    async def main() -> None:
        server = ControlServer(good, {"ping": lambda _args: "pong"})
        await server.start()
        with ControlClient(good) as client:
            answer = await asyncio.to_thread(client.call, "ping")
        assert answer == "pong"
        await server.close()
        with pytest.raises(ControlError, match="at most 107 bytes, this one has 108.*--control"):
            await ControlServer(bad, {}).start()

    asyncio.run(main())
    with ControlClient(bad) as client, pytest.raises(ControlError, match="at most 107 bytes"):
        client.call("ping")


def test_a_long_list_comes_in_pieces(tmp_path: Path) -> None:
    """Others are answered between two pieces; a fault in the middle ends the connection."""
    made: list[int] = []
    faults: list[str] = []

    def rows(args: Mapping[str, Any]) -> Iterator[dict[str, int]]:
        for number in range(args["count"]):
            if number == args.get("fault"):
                raise RuntimeError("no such row")
            made.append(number)
            yield {"number": number}

    async def main() -> None:
        path = tmp_path / "sock"
        server = ControlServer(path, {"rows": rows}, lambda name, _error: faults.append(name))
        await server.start()
        turns: list[int] = []

        def call(**args: int) -> Any:
            with ControlClient(path) as client:
                return client.call("rows", **args)

        for count in (0, 1, 5_000):
            made.clear()
            work = asyncio.create_task(asyncio.to_thread(call, count=count))
            while not work.done():
                turns.append(len(made))
                await asyncio.sleep(0)
            assert await work == [{"number": number} for number in range(count)]
        steps = [b - a for a, b in itertools.pairwise(turns) if b > a]
        assert max(steps) <= 50
        with pytest.raises(ControlError, match="lost the daemon"):
            await asyncio.to_thread(call, count=1_000, fault=700)
        assert len(faults) == 1
        await server.close()

    asyncio.run(main())


def test_a_server_that_ends_may_finish_its_answers(path: Path) -> None:
    """Who has asked gets the answer if there is time; who asks nothing is not waited for."""

    async def main(answers_s: float) -> tuple[bytes, bytes]:
        server = ControlServer(path, HANDLERS)
        await server.start()
        idle, one = await asyncio.open_unix_connection(path)
        reader, two = await asyncio.open_unix_connection(path)
        two.write(b'{"command": "slow"}\n')
        while not server._answering:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)
        await server.close(answers_s)
        heard = await reader.read(), await idle.read()
        one.close()
        two.close()
        return heard

    assert asyncio.run(main(30.0)) == (b'{"ok":true,"data":"slept"}\n', b"")
    assert asyncio.run(main(0.0)) == (b"", b"")
