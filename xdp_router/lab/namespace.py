# SPDX-License-Identifier: Apache-2.0
"""One network namespace: run a callable, open a socket or start a process in it.

A thread enters the namespace and ends there, so the caller never leaves its own.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from . import libc
from .errors import LabError
from .spawn_guard import spawning

T = TypeVar("T")
Socket = socket.socket


@dataclass(frozen=True, slots=True)
class SpawnPolicy:
    """What all processes of a lab have in common.

    ``kept``: the directory of a kept lab, whose processes stay when this one ends. ``record`` is
    told each name and process as soon as it runs.
    """

    kept: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    record: Callable[[str, subprocess.Popen[bytes]], None] = lambda name, process: None


def in_thread(callable_: Callable[[], T]) -> T:
    """Run the callable in a fresh thread; its result, or its exception, is handed back."""
    results: list[T] = []
    failures: list[BaseException] = []

    def body() -> None:
        try:
            results.append(callable_())
        except BaseException as error:  # handed to the caller, whatever it is
            failures.append(error)

    thread = threading.Thread(target=body, name="lab-namespace", daemon=True)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


class Namespace:
    """A network namespace held by a file descriptor.

    Without a path it goes away with the last process and socket in it. With one it is also named
    in the file system (``ip netns`` sees it in /run/netns) until ``remove``.
    """

    def __init__(self, name: str, fd: int, path: Path | None, policy: SpawnPolicy) -> None:
        self.name = name
        self.fd = fd
        self._path = path
        self._policy = policy

    def __repr__(self) -> str:
        return f"<Namespace {self.name}>"

    @classmethod
    def create(
        cls, name: str, path: Path | None = None, policy: SpawnPolicy | None = None
    ) -> Namespace:
        """Make a namespace; with ``path``, bind it there.

        Raises LabError if the path exists, OSError if the kernel refuses (needs root).
        """
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                path.touch(mode=0o444, exist_ok=False)
            except FileExistsError:
                raise LabError(
                    f"namespace {path} exists already: take the other lab down or choose "
                    "another prefix"
                ) from None

        def make() -> int:
            libc.unshare(libc.CLONE_NEWNET)
            if path is not None:
                libc.mount("/proc/thread-self/ns/net", str(path), flags=libc.MS_BIND)
            return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

        return cls(name, in_thread(make), path, policy or SpawnPolicy())

    @classmethod
    def open(cls, name: str, path: Path, policy: SpawnPolicy | None = None) -> Namespace:
        """An existing named namespace. Raises LabError if it is not there."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise LabError(f"namespace {path} is gone: take the lab down and up again") from None
        return cls(name, fd, path, policy or SpawnPolicy())

    @property
    def path(self) -> Path:
        """A path by which another process can enter (``nsenter --net=PATH``)."""
        return self._path or Path(f"/proc/{os.getpid()}/fd/{self.fd}")

    def run(self, callable_: Callable[[], T]) -> T:
        """Run the callable in the namespace; its result, or its exception, is handed back."""

        def body() -> T:
            libc.setns(self.fd)
            return callable_()

        return in_thread(body)

    def socket(
        self, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM, proto: int = 0
    ) -> Socket:
        """A socket of the namespace; it works in every thread and stays the caller's to close."""
        return self.run(lambda: socket.socket(family, kind, proto))

    def connect(
        self,
        address: tuple[str, int],
        *,
        timeout: float = 5.0,
        source: tuple[str, int] | None = None,
    ) -> Socket:
        """A connected TCP socket, of the address's family, with the timeout (seconds) set on it.

        Raises OSError.
        """
        handle = self.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
        try:
            handle.settimeout(timeout)
            if source is not None:
                handle.bind(source)
            handle.connect(address)
        except BaseException:
            handle.close()
            raise
        return handle

    def spawn(
        self,
        argv: Sequence[str],
        *,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        **popen: Any,
    ) -> subprocess.Popen[bytes]:
        """Start a process in the namespace, in the caller's mount namespace.

        ``env`` adds to the environment; other keywords go to ``subprocess.Popen``. In a lab that
        is not kept, the process is killed when the thread that called ``spawn`` ends.
        Raises OSError, and LabError if a kept lab was taken down meanwhile.
        """
        fd, parent, kept = self.fd, os.getpid(), self._policy.kept
        popen.setdefault("stdin", subprocess.DEVNULL)
        with contextlib.ExitStack() as guarded:
            guards = [guarded.enter_context(spawning(kept))] if kept else []

            def enter() -> None:
                for guard in guards:
                    os.set_inheritable(guard, False)  # held up to exec, not beyond
                if not kept:
                    libc.prctl(libc.PR_SET_PDEATHSIG, 9)
                    if os.getppid() != parent:  # it was killed before that took effect
                        os._exit(1)
                libc.setns(fd)

            process = subprocess.Popen(
                list(argv),
                env={**os.environ, **self._policy.env, **(env or {})},
                preexec_fn=enter,
                pass_fds=(*popen.pop("pass_fds", ()), *guards),
                # Ctrl-C at a terminal is for the owner of the lab, who ends the rest in order.
                start_new_session=True,
                **popen,
            )
            self._policy.record(name or os.path.basename(argv[0]), process)
        return process

    def close(self) -> None:
        """Let go of the descriptor; a named namespace stays."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def remove(self) -> None:
        """Let go of the descriptor and of the name."""
        self.close()
        if self._path is not None:
            remove_name(self._path)


def remove_name(path: Path) -> None:
    """Unbind and delete a namespace's name, also a half-made one; nothing happens if it is gone."""
    with contextlib.suppress(OSError):  # EINVAL: nothing (more) is mounted here
        while True:
            libc.umount(str(path))
    path.unlink(missing_ok=True)
