# SPDX-License-Identifier: Apache-2.0
"""A namespace runs callables, sockets and processes inside, and leaves the caller outside."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.netns import unique_prefix, wait_for
from xdp_router.lab import LabError, Namespace, processes
from xdp_router.lab.links import prepare
from xdp_router.lab.namespace import remove_name

pytest_plugins = ("tests.support.netns",)


def inode() -> int:
    """The network namespace of the calling thread."""
    return os.stat("/proc/thread-self/ns/net").st_ino


def test_run_hands_back_results_and_exceptions() -> None:
    """The callable sees the namespace; its result or exception is the caller's, who stays out."""
    outside = inode()
    namespace = Namespace.create("ns")
    try:
        assert namespace.run(inode) == os.fstat(namespace.fd).st_ino != outside
        with pytest.raises(ZeroDivisionError):
            namespace.run(lambda: 1 // 0)
        assert inode() == outside
    finally:
        namespace.close()


def test_spawned_process_is_inside() -> None:
    """A process started by spawn, and what enters by ``path``, is in the namespace."""
    namespace = Namespace.create("ns")
    try:
        with namespace.spawn(["readlink", "/proc/self/ns/net"], stdout=subprocess.PIPE) as process:
            output = process.communicate()[0].decode()
        assert output.strip() == f"net:[{os.fstat(namespace.fd).st_ino}]"
        assert namespace.path.stat().st_ino == os.fstat(namespace.fd).st_ino
    finally:
        namespace.close()


SPAWNER = """
import sys
from xdp_router.lab.namespace import Namespace, SpawnPolicy
inside = Namespace.create("ns", policy=SpawnPolicy(env={sys.argv[1]: sys.argv[2]}))
print("begun", flush=True)
while True:
    inside.spawn(["sleep", "1000"])
"""


def test_nothing_survives_a_killed_parent(tmp_path: Path, rng: random.Random) -> None:
    """Wherever SIGKILL hits a process that spawns, all that it spawned ends too."""
    for _ in range(5):
        argv = [sys.executable, "-c", SPAWNER, processes.MARK, str(tmp_path)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as parent:
            assert parent.stdout is not None
            assert parent.stdout.readline() == b"begun\n"
            time.sleep(rng.uniform(0, 0.05))
            parent.kill()
        time.sleep(0.1)  # one that is between fork and exec shall show itself
        wait_for(lambda: not processes.marked(tmp_path), 5.0, "everything ends with the parent")


@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_sockets_work_from_outside(family: int, host: str) -> None:
    """A socket made in the namespace connects there, whichever thread uses it."""
    namespace = Namespace.create("ns")
    try:
        prepare(namespace, {}, ipv6=True)
        with namespace.socket(family) as server:
            server.bind((host, 0))
            server.listen()
            with namespace.connect(server.getsockname()[:2]) as peer:
                peer.sendall(b"hello")
                connection, _ = server.accept()
                with connection:
                    assert connection.recv(10) == b"hello"
    finally:
        namespace.close()


def test_named_namespace_can_be_opened_and_removed(private_mounts: Path) -> None:
    """A name makes the namespace last; it is not taken twice; removal can be repeated."""
    path = private_mounts / "netns" / unique_prefix()
    first = Namespace.create("ns", path)
    with pytest.raises(LabError, match="exists already"):
        Namespace.create("ns", path)
    number = os.fstat(first.fd).st_ino
    first.close()
    again = Namespace.open("ns", path)
    assert os.fstat(again.fd).st_ino == number
    again.remove()
    assert not path.exists()
    remove_name(path)
    with pytest.raises(LabError, match="is gone"):
        Namespace.open("ns", path)
