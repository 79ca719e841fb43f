# SPDX-License-Identifier: Apache-2.0
"""vLLM as the gateway's backend, where it is installed: it batches, caches prefixes, and counts."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.fresh_netns import in_fresh_netns
from tests.support.gateway_client import CutOff, chat, request
from tests.support.gateway_place import FIRST_PORT, serving
from tests.support.netns import wait_for
from tests.support.vllm_engine import MODEL, PORT, vllm
from xdp_router.lab.engine import Engine
from xdp_router.lab.engine_behaviour import Behaviour

_PATIENCE_S = 60.0
MOCK_PORT = 19_000
TEXT = f"""
[[listener]]
name = "front"
type = "llm"
address = "127.0.0.1:{FIRST_PORT}"
[listener.race]
hedge = "0s"
[[listener.backend]]
name = "vllm"
address = "127.0.0.1:{PORT}"
[[listener.backend]]
name = "mock"
address = "127.0.0.1:{MOCK_PORT}"
"""


@pytest.mark.timeout(900)  # it takes a minute to start, and more on a busy machine
@in_fresh_netns
def test_vllm(tmp_path: Path) -> None:
    """Whole answers and streams, a race that it wins, prefixes as it counts them itself,
    cancellation before and after the first token, and its end in the middle of an answer."""
    slow = Engine("mock", Behaviour().changed("ttft-ms=30000"))
    with vllm(tmp_path) as engine, serving(TEXT, {"mock": slow}) as place:

        def ask(tokens: int, prompt: str = "ba da fa", *, stream: bool = True) -> bytes:
            more: dict[str, Any] = {"max_tokens": tokens, "temperature": 0.0, "ignore_eos": True}
            return chat(stream=stream, prompt=prompt, model=MODEL, **more)

        base = f"http://127.0.0.1:{FIRST_PORT}/v1"
        with openai.OpenAI(base_url=base, api_key="none", max_retries=0, timeout=120) as ours:
            whole = ours.completions.create(model=MODEL, prompt="ba da fa", max_tokens=9)
            assert whole.usage is not None
            assert whole.usage.completion_tokens <= 9
            events = list(
                ours.completions.create(model=MODEL, prompt="ba da fa", max_tokens=9, stream=True)
            )
            assert events[-1].choices[0].finish_reason in ("length", "stop")
            with pytest.raises(openai.NotFoundError, match="does not exist"):
                ours.completions.create(model="another", prompt="x")
            with pytest.raises(openai.APIStatusError):
                ours.embeddings.create(model=MODEL, input="x")

        with place.connect() as client:
            client.sock.settimeout(_PATIENCE_S)
            assert client.send(ask(9)).head().status == 200
            assert list(client.events())[-1].data == "[DONE]"
            told = place.last()
            assert (told["backend"], told["legs"]) == ("vllm", 2)
            assert slow.counts.aborted == place.call(lambda: slow.counts.requests)

            hits = engine.figure("vllm:prefix_cache_hits_total")
            common = "ka la ma na pa ra sa ta " * 60
            for word in ("ba", "da", "fa"):
                said = json.loads(client.ask(ask(2, common + word, stream=False)).body)
                assert said["usage"]["prompt_tokens"] > 480
            assert engine.figure("vllm:prefix_cache_hits_total") >= hits + 2 * 256

        running = functools.partial(engine.figure, "vllm:num_requests_running")
        for tokens, asked in ((0, ask(3000, common * 10)), (3, ask(7000))):
            made = engine.figure("vllm:generation_tokens_total")
            gone = place.connect()
            gone.send(asked)
            if tokens:
                gone.head()
                heard = gone.events()
                for _ in range(tokens):
                    next(heard)
            wait_for(lambda: running() == 1, _PATIENCE_S, "it runs")
            gone.close()
            wait_for(lambda: running() == 0, _PATIENCE_S, "it has ended")
            assert engine.figure("vllm:generation_tokens_total") < made + 2500

        with place.connect() as client:
            assert client.ask(request("GET", "/health")).status == 200
            client.send(ask(7000)).head()
            rest = client.events()
            seen = [next(rest) for _ in range(5)]
            engine.process.kill()
            with pytest.raises(CutOff):
                seen.extend(rest)
            assert seen[-1].name == "error"
        place.settled()
