# SPDX-License-Identifier: Apache-2.0
"""What the gateway's demo shows, and in which words. Every number is measured in that run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from xdp_router.core.quantile import percentile

from .demo_chat import Chat, ask, ask_many
from .demo_engines import ENGINES, GATEWAY, EnginesLab
from .demo_story import milliseconds, plain_table

STRAIGHT = {"quick": 40, "steady": 20, "slow": 4}
RACED = 40
AT_ONCE = 4
CANARIES = 4
AFTER_KILL = 12
LONG = 400
KILL_AFTER = 5
_BAR = 30
_SHOWN = 3
_LINE = 96

_PICTURE = """\
                             +--- quick    30 ms to the first token, but now and then it stalls
    clients --- gateway -----+--- steady   60 ms
                             +--- slow    250 ms; who sends X-Canary: yes gets this one\
"""


class GatewayStory:
    """Tells it chapter by chapter. ``faults`` says what did not come out as it should.

    ``check`` is called between requests and may raise to end the story.
    """

    def __init__(self, console: Console, lab: EnginesLab, check: Callable[[], None]) -> None:
        self._console = console
        self._lab = lab
        self._check = check
        self.faults: list[str] = []

    def tell(self) -> None:
        """The whole story. Raises LabError if the gateway, or an engine, does not go on."""
        self._scene()
        straight = self._straight()
        self._explain(self._race(straight))
        self._canary()
        self._kill()

    # Chapters

    def _scene(self) -> None:
        self._title("A gateway that races for the first token")
        self._say("Three inference engines (mocks: the timing is real, the text is not):")
        self._show(Text(_PICTURE))
        self._say(
            "A request goes to the engine with the best score. If it has sent no token after 100 "
            "ms, a second one is asked as well; the first token wins, and the other request is "
            "cancelled."
        )

    def _straight(self) -> Mapping[str, Sequence[Chat]]:
        self._title(f"1. Straight to each engine, {AT_ONCE} requests at a time")
        found = {}
        for name, (port, _) in ENGINES.items():
            found[name] = self._ask(("127.0.0.1", port), STRAIGHT[name], f"straight to {name}")
        self._times({f"straight to {name}": chats for name, chats in found.items()})
        return found

    def _race(self, straight: Mapping[str, Sequence[Chat]]) -> Sequence[Mapping[str, Any]]:
        self._title(f"2. {RACED} requests through the gateway")
        chats = self._ask(GATEWAY, RACED, "through the gateway")
        self._shares(chats)
        self._times(
            {
                "through the gateway": chats,
                **{f"straight to {name}": each for name, each in straight.items()},
            }
        )
        rows: Sequence[Mapping[str, Any]] = self._lab.ask("decisions", "--limit", str(RACED))
        hedged = sum(row["hedged"] for row in rows)
        won = sum(row.get("reason") == "hedge won" for row in rows)
        self._say(
            f"For {hedged} of the {len(rows)} requests a second engine was asked, and for {won} of "
            "them it was the one that answered. That is what the race costs: the engine that lost "
            "was cancelled, but had begun."
        )
        self._command("decisions", "--limit", "5")
        return rows

    def _explain(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._title("3. Why did one of them go where it went?")
        chosen = next((row for row in rows if row.get("reason") == "hedge won"), rows[0])
        self._command("explain", chosen["id"])

    def _canary(self) -> None:
        self._title(f"4. The canary: {CANARIES} requests with X-Canary: yes")
        chats = [
            ask(self._lab.namespace, GATEWAY, headers={"X-Canary": "yes"}) for _ in range(CANARIES)
        ]
        self._shares(chats)
        if any(each.engine != "slow" or each.end for each in chats):
            self.faults.append(f"a request with the header went to another engine: {chats}")

    def _kill(self) -> None:
        self._title("5. An engine is killed while it streams")

        def kill(chat: Chat) -> None:
            if chat.tokens == KILL_AFTER:
                self._lab.kill(chat.engine)

        headers = {"x-mock": "gap-ms=10"}
        chat = ask(self._lab.namespace, GATEWAY, tokens=LONG, headers=headers, on_token=kill)
        self._say(
            f"The client asked for {LONG} tokens. {chat.engine} was killed after {KILL_AFTER} "
            f"tokens; the client has {chat.tokens}. The end of what it saw:"
        )
        shown = [each if len(each) <= _LINE else f"{each[: _LINE - 3]}..." for each in chat.lines]
        self._show(Text("\n".join(f"    {each}" for each in shown[-_SHOWN:])))
        self._say(
            f"And then: {chat.end}. No [DONE], no end of the body: nobody takes this for a whole "
            "answer. What has begun is not repeated behind the client's back."
        )
        if not chat.end or "event: error" not in chat.lines:
            self.faults.append(f"a stream whose engine died ended like this: {chat.lines[-3:]}")
        after = self._ask(GATEWAY, AFTER_KILL, "after the kill")
        self._say(
            "Who comes now is not harmed: a connection that is refused is tried elsewhere, before "
            f"the client has got a byte. {sum(not each.end for each in after)} of {AFTER_KILL} new "
            "requests were answered to the end:"
        )
        self._shares(after)
        if any(each.engine == chat.engine for each in after):
            self.faults.append(f"{chat.engine} was killed, but a request went there")
        self._command("backends")

    # What chapters are made of

    def _ask(self, address: tuple[str, int], count: int, what: str) -> Sequence[Chat]:
        self._check()
        self._lab.check()
        chats = ask_many(self._lab.namespace, address, count, AT_ONCE)
        failed = [each.end or f"status {each.status}" for each in chats if each.end]
        if failed:
            self.faults.append(f"{what}: {len(failed)} of {count} failed, first {failed[0]}")
        return chats

    def _shares(self, chats: Sequence[Chat]) -> None:
        table = plain_table("ENGINE", ">REQUESTS", "")
        counts = Counter(each.engine for each in chats)
        for name in ENGINES:
            bar = Text("#" * round(_BAR * counts[name] / len(chats)), style="green")
            table.add_row(name, str(counts[name]), bar)
        self._show(table)

    def _times(self, rows: Mapping[str, Sequence[Chat]]) -> None:
        table = plain_table("TIME TO THE FIRST TOKEN", ">REQUESTS", ">P50", ">P90", ">MAX")
        for name, chats in rows.items():
            times = [each.ttft_ns for each in chats if each.ttft_ns]
            shown = [percentile(times, p) for p in (0.5, 0.9, 1.0)] if times else []
            table.add_row(name, str(len(times)), *(milliseconds(each) for each in shown))
        self._show(table)

    # Printing: each block with an empty line before it

    def _title(self, text: str) -> None:
        self._check()
        self._show(Text(f"{text}\n{'-' * len(text)}", style="bold cyan"))

    def _say(self, text: str) -> None:
        self._show(Text(text))

    def _command(self, *command: str) -> None:
        self._show(Text(f"$ xdp-router gateway {' '.join(command)}", style="bold green"))
        self._lab.show(*command)

    def _show(self, block: Text | Table) -> None:
        self._console.print()
        self._console.print(block)
