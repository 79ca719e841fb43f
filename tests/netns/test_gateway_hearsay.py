# SPDX-License-Identifier: Apache-2.0
"""Metrics of engines, pushes and a control arm, in a gateway as an operator runs it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.engines import engine, loopback_up
from tests.support.fresh_netns import in_fresh_netns
from tests.support.gateway_client import RawClient, chat
from tests.support.gateway_process import (
    ADDRESS,
    METRICS_PORT,
    PORT,
    GatewayProcess,
    counters,
    gateways,
    page,
)
from xdp_router.adapters.control import CommandError
from xdp_router.cli.main import main

DEAD_PORT = 9
PROMPT = "how it begins " * 400


def document(ports: list[int], scrape: str = 'preset = "vllm"') -> str:
    """Two workers; b1 is asked at its own port, the metrics of b2 are where nobody listens."""
    return (
        f'[gateway]\nworkers = 2\naccess_log = false\nmetrics = "{ADDRESS}:{METRICS_PORT}"\n'
        f'[[listener]]\nname = "front"\ntype = "llm"\naddress = "{ADDRESS}:{PORT}"\n'
        f'mode = "inline"\ncontrol_arm = 50\n[listener.scrape]\n{scrape}\n'
        f'[[listener.backend]]\nname = "b1"\naddress = "{ADDRESS}:{ports[0]}"\n'
        f'[[listener.backend]]\nname = "b2"\naddress = "{ADDRESS}:{ports[1]}"\n'
        f'scrape = "{ADDRESS}:{DEAD_PORT}"\n'
    )


def backends(gateway: GatewayProcess) -> dict[str, Any]:
    """By name."""
    return {each["name"]: each for each in gateway.ask("backends")}


def told(gateway: GatewayProcess, name: str, key: str) -> tuple[float, str] | None:
    """What counts, and who has told it."""
    found = backends(gateway)[name]["told"].get(key)
    return (found["value"], found["source"]) if found and found["counts"] else None


def cli(gateway: GatewayProcess, *args: str) -> str:
    """What the command says."""
    argv = ["gateway", "--control", str(gateway.control), *args]
    result = CliRunner().invoke(main, argv)
    assert result.exit_code == 0, result.output
    return result.output


@in_fresh_netns
def test_engines_and_others_tell_how_they_are(tmp_path: Path) -> None:
    """What metrics say, less what is the gateway's own; a place that does not answer; a push; how
    predictions and the control arm do; after a restart all that was told still counts."""
    loopback_up()
    with ExitStack() as undo:
        both = [
            undo.enter_context(engine("--name", name, "--ttft-ms", "2", "--cache-blocks", "500"))
            for name in ("b1", "b2")
        ]
        ports = [each.address[1] for each in both]
        (gateway, second) = undo.enter_context(gateways(tmp_path, "first", "second"))
        gateway.config.write_text(document(ports))
        gateway.start()

        # Somebody else's requests at b1.
        foreign = [undo.enter_context(RawClient.connect(both[0].address)) for _ in range(3)]
        for each in foreign:
            each.send(chat("ttft-ms=600000"))
        gateway.wait(lambda: told(gateway, "b1", "queue") == (3.0, "scrape"), "it is told")
        row = backends(gateway)["b1"]
        assert (row["in_flight"], row["others"]) == (0, 3.0)
        gateway.wait(lambda: gateway.events("scrape_failed"), "b2 is asked")
        assert "connection refused" in backends(gateway)["b2"]["scrape"]["error"]
        assert len(gateway.events("scrape_failed")) == 1

        for _ in range(40):
            with RawClient.connect((ADDRESS, PORT)) as client:
                assert client.ask(chat("tokens=1", prompt=PROMPT, stream=False)).status == 200
        gateway.wait(
            lambda: (backends(gateway)["b1"]["prefix_cache"] or {}).get("measured"), "hits"
        )
        shares = backends(gateway)["b1"]["prefix_cache"]
        assert shares["predicted"] > 0.2
        (arm,) = gateway.ask("status")["control_arms"]
        assert arm["arms"]["mode"]["count"] + arm["arms"]["control"]["count"] == 40
        assert arm["gain"]["p50"]["gain_ms"]["estimate"] is not None
        assert "control arm, 50 % of requests by turns" in cli(gateway, "status")

        told_b2 = cli(gateway, "push", "b2", "--queue", "6", "--cache-usage", "0.5")
        assert told_b2 == f"b2 ({ADDRESS}:{ports[1]}): queue 6, cache 50% full, for 10s\n"
        assert told(gateway, "b2", "queue") == (6.0, "push")
        with pytest.raises(CommandError, match="there is no backend 'b3'; there are: b1, b2"):
            gateway.ask("push", backend="b3", queue=1)
        shown = cli(gateway, "backends")
        assert "b2: queue 6 (push, " in shown
        assert f"metrics of http://{ADDRESS}:{DEAD_PORT}/metrics are not read" in shown
        figures = page()
        for line in (
            'score_input{backend="b2",input="queue",listener="front",source="push"} 6.0',
            'scrapes_total{backend="b2",listener="front",result="ok"} 0.0',
            'arm_first_seconds_count{arm="control",listener="front"}',
            'gain_seconds{at="p50",bound="estimate",listener="front"}',
            f'prefix_cache_share{{backend="{ADDRESS}:{ports[0]}",by="measured"}}',
        ):
            assert f"xdp_router_gateway_{line}" in figures, line

        before = counters()
        assert before['scrapes_total{backend="b1",listener="front",result="ok"}'] > 0
        assert before[f'prefix_cache_queries_total{{backend="{ADDRESS}:{ports[0]}"}}'] > 0
        second.config.write_text(document(ports))
        second.start()
        assert told(second, "b2", "queue") == (6.0, "former")
        second.wait(lambda: told(second, "b1", "queue") == (3.0, "scrape"), "it asks as well")
        assert gateway.ended() == 0
        after = counters()
        assert all(after[name] >= value for name, value in before.items())
        second.config.write_text(document(ports, 'queue = "no:such"'))
        second.ask("reload")
        second.wait(lambda: second.events("scrape_failed"), "b1 has nothing of that")
        assert second.stop() == 0
