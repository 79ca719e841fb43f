# SPDX-License-Identifier: Apache-2.0
"""Write what vLLM wants to know of a model whose weights it makes up (``--load-format dummy``).

Run by the engine's own interpreter: ``build/engines/vllm/bin/python dummy_model.py FOLDER``.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

_SPECIAL = ["<unk>", "<s>", "</s>"]
_WORDS = ["".join(letters) for letters in itertools.product("bdfgklmnprst", "aeiou", " nrs")]
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "unk_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_TEMPLATE = "{% for each in messages %}{{ each['role'] }} {{ each['content'] }} {% endfor %}"


def write(folder: Path) -> None:
    """Configuration, tokenizer (a word is a token) and template."""
    words = [*_SPECIAL, *(each.strip() for each in _WORDS)]
    vocabulary = {word: number for number, word in enumerate(words)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(_SPECIAL)
    made.save(str(folder / "tokenizer.json"))
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": _TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    config = {**_CONFIG, "vocab_size": len(vocabulary)}
    (folder / "config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
