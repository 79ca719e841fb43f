# SPDX-License-Identifier: Apache-2.0
"""``xdp-router lab up`` and ``down``: what a user who has no hardware runs first."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.clients import dial, who
from tests.support.netns import mounts_under, unique_prefix
from xdp_router.lab import open_lab, processes

pytest_plugins = ("tests.support.netns",)


def command(*args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``xdp-router ARGS`` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "xdp_router.cli.main", *args],
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_lab_comes_up_works_and_goes(private_mounts: Path) -> None:
    """After up the service works and the printed variables are enough; down leaves nothing."""
    directory = private_mounts / "lab"
    prefix = unique_prefix()
    place = ("--directory", str(directory), "--prefix", prefix)
    try:
        up = command(
            *("lab", "up", "--kind", "echo", "--backend", "b1"), *place, "--backend=b2=5ms"
        )
        assert up.returncode == 0, up.stderr
        lines = up.stdout.splitlines()
        exports = (line.split()[1] for line in lines if line.startswith("  export "))
        env = dict(export.split("=", 1) for export in exports)
        assert f"sudo xdp-router lab down --directory {directory} --prefix {prefix}" in up.stdout

        lab = open_lab(directory)
        try:
            with dial(lab.client, lab.addresses.service) as peer:
                assert who(peer) == "b1"
            status = json.loads(command("status", "--json", env=env).stdout)
            assert status["ready"] is True
            assert status["decisions_total"] == 1
            (flow,) = json.loads(command("flows", "--json", env=env).stdout)
            assert (flow["backend"], flow["decision"]["mode"]) == ("b1", "race")
        finally:
            lab.close()

        again = command("lab", "up", *place)
        assert again.returncode == 1
        assert "a lab is up already" in again.stderr
        assert "lab down" in again.stderr
    finally:
        down = command("lab", "down", *place)
    assert (down.returncode, down.stdout) == (0, "The lab is gone.\n")
    assert not processes.marked(directory)
    assert not mounts_under(directory)
    assert not directory.exists()
    assert not list(Path("/run/netns").glob(f"{prefix}-*"))
    assert command("lab", "down", *place).stdout == "No lab was up.\n"


def test_daemon_that_can_not_start_takes_the_lab_with_it(private_mounts: Path) -> None:
    """If the router does not come up, up says why and leaves nothing behind."""
    directory = private_mounts / "failing"
    place = ("--directory", str(directory), "--prefix", unique_prefix())
    # Something else has the daemon's control socket already.
    directory.mkdir()
    (directory / "control.sock").mkdir()
    done = command("lab", "up", "--backend", "b1", *place)
    assert done.returncode == 1
    assert "control.sock exists and is not a socket" in done.stderr
    assert not processes.marked(directory)
    assert not mounts_under(directory)


@pytest.mark.parametrize("wrong", ["a b", "../a", "", "-a", "a" * 65])
def test_wrong_prefix_is_a_usage_error(wrong: str, tmp_path: Path) -> None:
    """It names files, and stands in commands that are shown: exit code 2 says what it may be."""
    done = command("lab", "up", "--directory", str(tmp_path), "--prefix", wrong)
    assert done.returncode == 2
    assert "use 1 to 64 letters, digits" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "wrong", ["b1=fast", "b1=5h", "b1,weight=0", "b1,heavy=3", "b1,weight=1,weight=2"]
)
def test_wrong_backend_is_a_usage_error(wrong: str) -> None:
    """A delay that can't be read is exit code 2 with an example."""
    done = command("lab", "up", "--backend", wrong)
    assert done.returncode == 2
    assert "such as b1 or b1=5ms or b1=5ms,weight=3" in done.stderr


@pytest.mark.parametrize(
    ("options", "address"),
    [
        (("--family", "6", "--protocol", "udp", "--forwarding", "dsr"), "[2001:db8:100::1]:80"),
        (("--forwarding", "fullnat", "--one-armed", "--kind", "hash"), "198.18.100.1:80"),
        (("--forwarding", "ipip", "--protocol", "udp", "--kind", "stun"), "198.18.100.1:80"),
    ],
    ids=["dsr", "one-armed", "ipip"],
)
def test_labs_of_every_sort(private_mounts: Path, options: tuple[str, ...], address: str) -> None:
    """What is asked for is what comes up, and its backends answer, by the way that it says."""
    directory = private_mounts / "sort"
    place = ("--directory", str(directory), "--prefix", unique_prefix())
    try:
        up = command("lab", "up", "--backend", "b1,weight=2", *options, *place)
        assert up.returncode == 0, up.stderr
        lines = up.stdout.splitlines()
        assert address in lines[0]
        exports = (line.split()[1] for line in lines if line.startswith("  export "))
        env = dict(export.split("=", 1) for export in exports)
        lab = open_lab(directory)
        try:
            (talk,) = (line.strip() for line in lines if " netns exec " in line)
            said = subprocess.run(
                talk.removeprefix("sudo "), shell=True, capture_output=True, timeout=10, check=True
            )
            # The name that the server gives; of STUN the type of a binding response.
            assert said.stdout.split()[: 2 if "stun" in options else 1] == (
                [b"01", b"01"] if "stun" in options else [b"b1"]
            )
            (flow, *_) = json.loads(command("flows", "--json", env=env).stdout)
            assert flow["backend"] == "b1"
            (row,) = json.loads(command("services", "--json", env=env).stdout)
            assert row["address"] == address
            asked = dict(itertools.pairwise(options))
            assert row["forwarding"] == asked.get("--forwarding", "nat")
            assert row["protocol"] == asked.get("--protocol", "tcp")
        finally:
            lab.close()
    finally:
        assert command("lab", "down", *place).returncode == 0


def test_what_does_not_go_together_builds_nothing(tmp_path: Path) -> None:
    """Refused with the option, before anything is there."""
    done = command(
        *("lab", "up", "--protocol", "udp", "--kind", "http", "--directory", str(tmp_path / "lab"))
    )
    assert done.returncode == 1
    assert "--kind http does not speak udp" in done.stderr
    assert not (tmp_path / "lab").exists()
