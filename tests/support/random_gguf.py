# SPDX-License-Identifier: Apache-2.0
"""Write a small language model without sense: random weights, in the form that llama.cpp loads.

Run by the engine's own interpreter: ``build/engines/llama/bin/python random_gguf.py FILE``.

Tokens of plain words have random rows in the output layer, all others rows of zero: whatever is
chosen is a word, and answers end by their limit.
"""

from __future__ import annotations

import itertools
import sys

import gguf
import numpy

WIDTH, LAYERS, HEADS, INNER, CONTEXT = 256, 4, 8, 1024, 16_384
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
_FIXED = [("<unk>", _UNKNOWN), ("<s>", _CONTROL), ("</s>", _CONTROL)]
_BYTES = [(f"<0x{number:02X}>", _BYTE) for number in range(256)]
_BLANK = "\u2581"
_FIRST, _VOWELS, _LAST = "bdfgklmnprst", "aeiou", ["", "n", "r", "s"]
# What words are put together from, letter by letter.
_PIECES = [(each, _NORMAL) for each in (_BLANK, *_FIRST, *_VOWELS)]
_PIECES += [(_BLANK + each, _NORMAL) for each in _FIRST]
_WORDS = [
    (_BLANK + "".join(letters), _NORMAL) for letters in itertools.product(_FIRST, _VOWELS, _LAST)
]


def write(path: str, seed: int) -> None:
    """The same seed gives the same model."""
    rng = numpy.random.default_rng(seed)
    tokens = _FIXED + _BYTES + _PIECES + _WORDS
    out = gguf.GGUFWriter(path, "llama")
    out.add_name("random")
    out.add_context_length(CONTEXT)
    out.add_embedding_length(WIDTH)
    out.add_block_count(LAYERS)
    out.add_feed_forward_length(INNER)
    out.add_head_count(HEADS)
    out.add_head_count_kv(HEADS)
    out.add_rope_dimension_count(WIDTH // HEADS)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_vocab_size(len(tokens))
    out.add_tokenizer_model("llama")
    out.add_token_list([text for text, _ in tokens])
    out.add_token_scores([0.0 - number for number in range(len(tokens))])
    out.add_token_types([kind for _, kind in tokens])
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    out.add_unk_token_id(0)

    def add(name: str, *shape: int, scale: float = 0.05) -> None:
        weights = rng.standard_normal(shape) * scale
        out.add_tensor(name, weights.astype(numpy.float32))

    def add_ones(name: str) -> None:
        out.add_tensor(name, numpy.ones(WIDTH, numpy.float32))

    add("token_embd.weight", len(tokens), WIDTH, scale=1.0)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        add_ones(f"{block}.attn_norm.weight")
        add_ones(f"{block}.ffn_norm.weight")
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"{block}.{name}.weight", WIDTH, WIDTH)
        add(f"{block}.ffn_gate.weight", INNER, WIDTH)
        add(f"{block}.ffn_up.weight", INNER, WIDTH)
        add(f"{block}.ffn_down.weight", WIDTH, INNER)
    add_ones("output_norm.weight")
    rows = rng.standard_normal((len(tokens), WIDTH)) * 0.3
    rows[: len(tokens) - len(_WORDS)] = 0
    out.add_tensor("output.weight", rows.astype(numpy.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


if __name__ == "__main__":
    write(sys.argv[1], seed=7)
