# SPDX-License-Identifier: Apache-2.0
"""A real bash completes what it is asked; names come from the control socket, at once or never."""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest

from xdp_router.adapters import completion
from xdp_router.adapters.control import ControlServer

NAMES = {
    "service": ["web"],
    "backend": ["b1", "b2"],
    "client": ["198.18.0.2:4711/tcp", "[2001:db8::5]:4712/udp"],
    "address": ["198.18.0.2:4711", "[2001:db8::5]:4712"],
}


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A socket whose server knows these names."""
    path = tmp_path_factory.mktemp("control") / "s"
    loop = asyncio.new_event_loop()

    def names(args: Mapping[str, Any]) -> list[str]:
        if args.get("service") not in (None, "web"):
            return []
        return [each for each in NAMES[args["kind"]] if each.startswith(args["prefix"])]

    server = ControlServer(path, {"names": names})
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(10)
    yield path
    asyncio.run_coroutine_threadsafe(server.close(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


_PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


@functools.cache
def bash_source(program: str) -> str:
    """What a shell evaluates once, at its start."""
    variable = f"_{program.upper().replace('-', '_')}_COMPLETE"
    env = {**os.environ, "PATH": _PATH, variable: "bash_source"}
    source = subprocess.run([program], env=env, capture_output=True, text=True, timeout=60)
    assert source.returncode == 0, source.stderr
    return source.stdout


def completed(control: Path, program: str, line: str) -> list[str]:
    """What a real bash offers at the end of the line, as readline would be given it."""
    env = {**os.environ, "PATH": _PATH, "XDP_ROUTER_CONTROL": str(control)}
    # Words as bash takes them apart: at blanks, around colons and equals signs.
    asking = """
eval "$SOURCE"
COMP_WORDS=(); COMP_LINE=$LINE; COMP_POINT=${#LINE}
for word in $LINE; do
    rest=$word
    while [[ $rest == *[:=]* ]]; do
        head=${rest%%[:=]*}
        [[ $head ]] && COMP_WORDS+=("$head")
        COMP_WORDS+=("${rest:${#head}:1}"); rest=${rest:${#head}+1}
    done
    [[ $rest ]] && COMP_WORDS+=("$rest")
done
[[ $LINE == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
complete -p "$PROGRAM" >/dev/null
"$FUNCTION" "$PROGRAM" "${COMP_WORDS[COMP_CWORD]}" ""
printf '%s\\n' "${COMPREPLY[@]}"
"""
    env |= {"SOURCE": bash_source(program), "LINE": line, "PROGRAM": program}
    env["FUNCTION"] = f"_{program.replace('-', '_')}_completion"
    done = subprocess.run(
        ["bash", "-c", asking], env=env, capture_output=True, text=True, timeout=60
    )
    return done.stdout.split()


def test_commands_and_options(control: Path) -> None:
    """Of both programs, as click has them."""
    assert completed(control, "xdp-router", "xdp-router ev") == ["events"]
    assert completed(control, "xdp-router", "xdp-router flows --st") == ["--state"]
    assert "established" in completed(control, "xdp-router", "xdp-router flows --state ")
    assert completed(control, "xdp-routerd", "xdp-routerd det") == ["detach"]


def test_names_that_the_daemon_knows(control: Path) -> None:
    """Services, backends; of a client what is behind its last colon, which bash replaces."""
    assert completed(control, "xdp-router", "xdp-router flows --backend b") == ["b1", "b2"]
    assert completed(control, "xdp-router", "xdp-router flows --service ") == ["web"]
    assert completed(control, "xdp-router", "xdp-router explain 198.18.0.2:47") == ["4711/tcp"]
    assert completed(control, "xdp-router", "xdp-router explain [2001:db8::5]:") == ["4712/udp"]
    assert completed(control, "xdp-router", "xdp-router flows --client 198.18.0.2:") == ["4711"]
    assert completed(control, "xdp-router", "xdp-router drain ") == ["b1", "b2"]
    assert completed(control, "xdp-router", "xdp-router service set w") == ["web"]
    assert completed(control, "xdp-router", "xdp-router backend add ") == ["web"]
    # The line says which socket, not the environment.
    line = f"xdp-router --control {control} flows --backend b"
    assert completed(Path("/nowhere"), "xdp-router", line) == ["b1", "b2"]


def test_names_of_events(control: Path) -> None:
    """With or without a daemon, behind a blank or an equals sign."""
    line = "xdp-router events --event backend_u"
    assert completed(Path("/nowhere"), "xdp-router", line) == ["backend_undrained", "backend_up"]
    line = "xdp-router events --event=backend_un"
    assert completed(control, "xdp-router", line) == ["backend_undrained"]


def test_keys_and_values_of_edits(control: Path) -> None:
    """Keys that were not given yet; behind the equals sign what readline replaces there."""
    program = "xdp-router"
    assert completed(control, program, f"{program} service set web dead") == ["deadline="]
    assert completed(control, program, f"{program} backend set b1 we") == ["weight="]
    assert completed(control, program, f"{program} backend add web 198.18.1.2:80 vl") == ["vlan="]
    line = f"{program} service add 198.18.1.2:80/tcp --backend 198.18.1.3:80 orph"
    assert completed(control, program, line) == ["orphans="]
    assert completed(control, program, f"{program} service set web mode=s") == ["snapshot"]
    assert completed(control, program, f"{program} service set web orphans=") == ["reset", "hash"]
    assert completed(control, program, f"{program} service set web probe=tcp-connect:") == []
    assert completed(control, program, f"{program} service set web fallback=b") == ["b1", "b2"]
    assert completed(control, program, f"{program} service set x fallback=b") == []
    # An empty value takes a key away; the next word is a key again.
    line = f"{program} service set web fallback= quic=true score.r"
    assert completed(control, program, line) == ["score.rtt="]
    offered = completed(control, program, f"{program} backend set b1 weight=3 ")
    assert "vlan=" in offered
    assert "weight=" not in offered


def test_without_a_daemon_nothing_is_offered(tmp_path: Path) -> None:
    """And no error is printed into the line that is being typed."""
    assert completed(tmp_path / "none", "xdp-router", "xdp-router flows --backend b") == []


def test_a_daemon_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    """For 0.2 s; then nothing is offered."""

    async def hang(_args: Mapping[str, Any]) -> list[str]:
        await asyncio.sleep(30)
        return []

    def ask() -> tuple[list[str], float]:
        group = click.Group("x", params=[click.Option(["--control"])])
        ctx = click.Context(group)
        ctx.params["control"] = str(tmp_path / "s")
        began = time.monotonic()
        found = completion.names_of("backend")(ctx, click.Option(["--backend"]), "b")
        return found, time.monotonic() - began

    async def main() -> tuple[list[str], float]:
        server = ControlServer(tmp_path / "s", {"names": hang})
        await server.start()
        try:
            return await asyncio.to_thread(ask)
        finally:
            await server.close()

    found, took_s = asyncio.run(main())
    assert found == []
    assert took_s >= completion.PATIENCE_S / 2
    assert took_s < 10


def test_interfaces_of_the_host() -> None:
    """But for loopback, which nobody attaches to."""
    ctx, argument = click.Context(click.Command("x")), click.Argument(["interfaces"])
    assert "lo" not in completion.interfaces(ctx, argument, "")
    assert completion.interfaces(ctx, argument, "no-such-") == []
