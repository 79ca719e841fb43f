# SPDX-License-Identifier: Apache-2.0
"""``xdp-router doctor`` on a whole router: before it is attached, beside it, after its death."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import who_answers
from tests.support.netns import running_lab
from tests.support.router import Router, calm_config, heartbeat_stale, router_in
from xdp_router.core import abi
from xdp_router.lab import BackendSpec, LabSpec

pytest_plugins = ("tests.support.netns",)


@pytest.fixture
def router(private_mounts: Path) -> Iterator[Router]:
    """A router that is not started yet, with its configuration in place."""
    with running_lab(LabSpec((BackendSpec("b1"), BackendSpec("b2")))) as lab:
        with router_in(lab, private_mounts) as placed:
            placed.config.write_text(calm_config(lab.spec))
            yield placed


def _doctor(router: Router, *args: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code and findings that are not in order, by code; run in the router's namespace."""
    argv = [sys.executable, "-m", "xdp_router.cli.main"]
    argv += ["--control", str(router.control), "--pins", str(router.pins)]
    done = router.run([*argv, "doctor", "--json", *args])
    assert not done.stderr
    answer = json.loads(done.stdout)
    codes = [each["code"] for each in answer["findings"]]
    assert codes.count("veth_peer_unseen") <= 1
    bad = {each["code"]: each for each in answer["findings"] if each["severity"] != "ok"}
    assert all(each["mend"] for each in bad.values())
    return done.returncode, bad


def test_before_attaching(router: Router) -> None:
    """A lab's interfaces are in order; without the backends' interfaces it says what to add."""
    interfaces = router.lab.router_interfaces
    code, bad = _doctor(router, *interfaces, "--config", str(router.config))
    assert (code, set(bad) - {"ip_forward"}) == (0, {"veth_peer_unseen"})
    # The same of each is said once.
    assert bad["veth_peer_unseen"]["subject"] == " ".join(interfaces)
    code, bad = _doctor(router, interfaces[0], "--config", str(router.config))
    assert code == 1
    assert bad["backend_not_attached"]["severity"] == "fail"


def test_beside_a_daemon(router: Router) -> None:
    """A running router is in order; a detached program and a foreign namespace are noticed."""
    router.start()
    who_answers(router)
    code, bad = _doctor(router)
    assert (code, set(bad) - {"ip_forward"}) == (0, {"veth_peer_unseen"})
    done = router.cli("doctor")  # from the tests' own namespace
    assert "another network namespace" in " ".join(done.stdout.split())
    assert done.returncode == 0
    found = json.loads(router.cli("doctor", "--json").stdout)["findings"]
    (mend,) = (each["mend"] for each in found if each["code"] == "other_namespace")
    # To be copied: sudo drops exported variables.
    assert f"xdp-router --control {router.control} --pins {router.pins} doctor" in mend


def test_generic_mode(router: Router) -> None:
    """A router in generic mode works, and is told to be slow, interface by interface."""
    router.start(None, "--xdp-mode", "generic")
    argv = [sys.executable, "-m", "xdp_router.cli.main"]
    argv += ["--control", str(router.control), "--pins", str(router.pins), "doctor"]
    done = router.run(argv)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("generic mode") == len(router.lab.router_interfaces)
    assert "0 fail" in done.stdout


def test_after_its_death(router: Router) -> None:
    """What a killed daemon leaves is told, with the command that takes it away."""
    router.start(calm_config(router.lab.spec, 'heartbeat_stale = "300ms"'))
    router.stop(signal.SIGKILL)
    heartbeat_stale()
    who_answers(router)
    code, bad = _doctor(router)
    assert code == 0
    assert {"control_stale", "heartbeat", "heartbeat_stale"} <= set(bad)


def test_what_attach_refuses_because_of_the_file(router: Router) -> None:
    """Is found before, with the mend; --max-flows goes before the file's, as it does there."""
    interfaces = router.lab.router_interfaces
    nobodys = 'metrics = "198.18.200.9:9850"'
    router.config.write_text(calm_config(router.lab.spec, nobodys))
    code, bad = _doctor(router, *interfaces, "--config", str(router.config), "--max-flows", "1000")
    assert code == 1
    assert set(bad) - {"ip_forward"} == {"veth_peer_unseen", "metrics"}
    assert bad["metrics"]["severity"] == "fail"
    assert "Cannot assign requested address" in bad["metrics"]["text"]
    done = router.attach_in_vain([*interfaces], "--config", str(router.config))
    assert done.returncode == 1
    assert "198.18.200.9:9850: Cannot assign requested address" in done.stderr
    argv = [sys.executable, "-m", "xdp_router.cli.main", "doctor", "--max-flows", "1000"]
    assert "give --config FILE, too" in router.run(argv).stderr
    router.config.write_bytes(b"\xff")
    done = router.run([*argv, "--config", str(router.config)])
    assert (done.returncode, "not UTF-8" in done.stderr) == (2, True)


def test_half_removed_pins(router: Router) -> None:
    """Pins that were removed in part fail, and so does an interface that lost its program."""
    router.start()
    router.stop(signal.SIGKILL)
    (pins,) = (router.pins / f"v{abi.ABI_VERSION}").iterdir()
    (pins / "control").unlink()
    code, bad = _doctor(router)
    assert code == 1
    assert bad["pins_half_removed"]["severity"] == "fail"
    assert "xdp-routerd detach" in bad["pins_half_removed"]["mend"]


def test_a_bad_configuration(router: Router) -> None:
    """A file that check refuses is refused here too, as a usage error."""
    router.config.write_text("nonsense = 1\n")
    argv = [sys.executable, "-m", "xdp_router.cli.main", "doctor", "--config", str(router.config)]
    done = router.run(argv)
    assert done.returncode == 2
    assert "nonsense" in done.stderr
