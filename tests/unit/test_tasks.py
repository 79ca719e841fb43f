# SPDX-License-Identifier: Apache-2.0
"""Tasks beside the router's own work."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from xdp_router.daemon import tasks
from xdp_router.daemon.tasks import Tasks


async def _broken() -> None:
    raise RuntimeError("a bug")


def test_a_task_that_fails_is_told_by_its_name() -> None:
    """One line, and the others go on."""
    done: list[str] = []

    async def good() -> None:
        await asyncio.sleep(0.01)
        done.append("good")

    async def main() -> None:
        tasks = Tasks()
        tasks.spawn(_broken(), "sweeping")
        tasks.spawn(good(), "good")
        await asyncio.sleep(0.05)
        await tasks.cancel()

    with capture_logs() as lines:
        asyncio.run(main())
    (line,) = lines
    assert (line["event"], line["task"]) == ("task_failed", "sweeping")
    assert done == ["good"]


def test_work_that_has_to_go_on_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each fault, which is told once as long as it is the same; never after its own end."""
    monkeypatch.setattr(tasks, "AGAIN_S", 0.0)
    faults = [OSError(12, "short")] * 3 + [OSError(5, "another")]
    begun: list[int] = []

    async def work() -> None:
        begun.append(len(faults))
        if faults:
            raise faults.pop()

    async def main() -> None:
        made = Tasks()
        made.keep(work, "sweeping")
        await asyncio.sleep(0.05)
        await made.cancel()

    with capture_logs() as lines:
        asyncio.run(main())
    assert begun == [4, 3, 2, 1, 0]
    assert [(line["event"], line["task"]) for line in lines] == [("task_failed", "sweeping")] * 2
    assert "another" in lines[0]["error"]


def test_all_have_ended_when_cancel_returns() -> None:
    """What they acquired is let go by then, and it is no fault of theirs."""
    ended: list[int] = []

    async def endless(number: int) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended.append(number)

    async def main() -> None:
        tasks = Tasks()
        for number in range(3):
            tasks.spawn(endless(number), str(number))
        await asyncio.sleep(0)
        await tasks.cancel()
        assert sorted(ended) == [0, 1, 2]

    with capture_logs() as lines:
        asyncio.run(main())
    assert not lines


@pytest.mark.parametrize("swallows", [1, 2, 99])
def test_a_cancellation_that_is_swallowed_is_repeated(
    swallows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end does not wait for ever: what goes on all the same is named, and left."""
    monkeypatch.setattr(tasks, "CANCEL_S", 0.05)
    swallowed: list[int] = []

    async def deaf() -> None:
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                swallowed.append(1)
                if len(swallowed) > swallows:
                    raise

    async def main() -> None:
        made = Tasks()
        made.spawn(deaf(), "hand-off")
        await asyncio.sleep(0)
        await made.cancel()
        swallowed.extend([1] * 99)  # asyncio.run() waits for it

    with capture_logs() as lines:
        asyncio.run(main())
    told = [line["task"] for line in lines if line["event"] == "task_not_ended"]
    assert told == (["hand-off"] if swallows == 99 else [])
