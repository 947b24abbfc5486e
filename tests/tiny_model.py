"""A llama model of 435 kB with random weights, so that real KV state costs nothing.

It loads in a fifth of a second, prefills tens of thousands of tokens a second, has 256
bytes of KV per token, and its output depends on all of its context. Token ids below 256
are the bytes themselves.
"""

from pathlib import Path
from typing import Final

import gguf
import numpy as np
import numpy.typing as npt

BYTES_PER_TOKEN: Final = 256
CONTEXT_TOKENS: Final = 8192
LAYERS: Final = 2
END_OF_TEXT: Final = 256
END_OF_TURN: Final = 258

_EMBEDDING: Final = 64
_HEADS: Final = 4
_KV_HEADS: Final = 2
_HEAD: Final = _EMBEDDING // _HEADS
_FEED_FORWARD: Final = 128
_TEMPLATE: Final = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tiny_model(path: Path) -> None:
    """Write the model to *path*; the same bytes every time."""
    writer = gguf.GGUFWriter(path, "llama")
    _add_shape(writer)
    _add_vocabulary(writer)
    _add_weights(writer, np.random.default_rng(0))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_shape(writer: gguf.GGUFWriter) -> None:
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(_EMBEDDING)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(_FEED_FORWARD)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_rope_dimension_count(_HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def _add_vocabulary(writer: gguf.GGUFWriter) -> None:
    alphabet = _byte_alphabet()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = [*alphabet, *special, "th"]
    kinds = [
        *[gguf.TokenType.NORMAL] * len(alphabet),
        *[gguf.TokenType.CONTROL] * len(special),
        gguf.TokenType.NORMAL,
    ]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["t h"])  # the loader refuses a list without any
    writer.add_bos_token_id(END_OF_TEXT)
    writer.add_eos_token_id(END_OF_TURN)
    writer.add_add_bos_token(False)
    writer.add_chat_template(_TEMPLATE)


def _byte_alphabet() -> list[str]:
    """Return the printable stand-in for every byte, as byte-level BPE has them."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _add_weights(writer: gguf.GGUFWriter, random: np.random.Generator) -> None:
    def matrix(rows: int, columns: int, scale: float) -> npt.NDArray[np.float32]:
        weights = random.standard_normal((rows, columns), np.float32)
        return weights * np.float32(scale / columns**0.5)

    ones = np.ones(_EMBEDDING, np.float32)
    vocabulary = 260
    kv = _KV_HEADS * _HEAD
    writer.add_tensor("token_embd.weight", matrix(vocabulary, _EMBEDDING, 8.0))
    writer.add_tensor("output_norm.weight", ones)
    writer.add_tensor("output.weight", matrix(vocabulary, _EMBEDDING, 3.0))
    for layer in range(LAYERS):
        for name, rows, columns, scale in (
            ("attn_q", _EMBEDDING, _EMBEDDING, 2.0),
            ("attn_k", kv, _EMBEDDING, 2.0),
            ("attn_v", kv, _EMBEDDING, 2.0),
            ("attn_output", _EMBEDDING, _EMBEDDING, 2.0),
            ("ffn_gate", _FEED_FORWARD, _EMBEDDING, 1.0),
            ("ffn_up", _FEED_FORWARD, _EMBEDDING, 1.0),
            ("ffn_down", _EMBEDDING, _FEED_FORWARD, 1.0),
        ):
            weights = matrix(rows, columns, scale)
            writer.add_tensor(f"blk.{layer}.{name}.weight", weights)
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", ones)
        writer.add_tensor(f"blk.{layer}.ffn_norm.weight", ones)
