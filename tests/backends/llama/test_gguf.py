"""The header reader: what it finds, and that it believes no length."""

import struct
from pathlib import Path

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvalet.backends.llama.gguf import NotGGUF, read_header

from ...tiny_model import BYTES_PER_TOKEN, CONTEXT_TOKENS, LAYERS


def write(path: Path, **heads: int | list[int]) -> Path:
    """Write a header of three layers with the given attention keys."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(100)
    writer.add_embedding_length(64)
    writer.add_block_count(3)
    for name, value in heads.items():
        key = f"llama.attention.{name}"
        if isinstance(value, list):
            writer.add_array(key, value)
        else:
            writer.add_uint32(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_the_header_of_a_model(tiny_gguf: Path) -> None:
    """Name, context, layers and KV size are those the model was written with."""
    header = read_header(tiny_gguf)
    assert (header.architecture, header.name) == ("llama", "tiny")
    assert (header.context_tokens, header.layers) == (CONTEXT_TOKENS, LAYERS)
    assert header.bytes_per_token() == BYTES_PER_TOKEN


def test_all_heads_have_kv_unless_said(tmp_path: Path) -> None:
    """Without head_count_kv every head has K and V rows of its own."""
    header = read_header(write(tmp_path / "m.gguf", head_count=4))
    assert header.kv_values_per_token == 3 * 4 * (16 + 16)


def test_row_lengths_may_differ_from_the_heads(tmp_path: Path) -> None:
    """key_length and value_length win over embedding / heads."""
    path = write(
        tmp_path / "m.gguf",
        head_count=4,
        head_count_kv=2,
        key_length=32,
        value_length=8,
    )
    assert read_header(path).kv_values_per_token == 3 * 2 * (32 + 8)


def test_heads_may_differ_per_layer(tmp_path: Path) -> None:
    """A list of KV heads is summed; a layer without any takes nothing."""
    path = write(tmp_path / "m.gguf", head_count=4, head_count_kv=[4, 0, 1])
    assert read_header(path).kv_values_per_token == 5 * (16 + 16)


def test_another_file_is_refused(tmp_path: Path) -> None:
    """A file without the magic is named in the sentence."""
    path = tmp_path / "notes.txt"
    path.write_text("not a model")
    with pytest.raises(NotGGUF, match=r"notes\.txt is not a GGUF file"):
        read_header(path)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    """No bytes are no model."""
    path = tmp_path / "empty.gguf"
    path.touch()
    with pytest.raises(NotGGUF):
        read_header(path)


def test_an_unknown_version_is_refused(tmp_path: Path) -> None:
    """Versions other than 2 and 3 are refused by number."""
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 9, 0, 0))
    with pytest.raises(NotGGUF, match="version is 9"):
        read_header(path)


def test_a_header_without_the_needed_keys_is_refused(tmp_path: Path) -> None:
    """The missing key is named."""
    with pytest.raises(NotGGUF, match=r"llama\.attention\.head_count"):
        read_header(write(tmp_path / "m.gguf"))


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_damage_is_refused_or_harmless(
    data: st.DataObject, tmp_path: Path, tiny_gguf: Path
) -> None:
    """A cut or flipped header raises NotGGUF or is read; nothing else happens."""
    whole = tiny_gguf.read_bytes()[:8000]
    cut = data.draw(st.integers(0, len(whole)))
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = bytearray(whole)
    damaged[at] ^= data.draw(st.integers(1, 255))
    path = tmp_path / "m.gguf"
    path.write_bytes(damaged[:cut])
    try:
        read_header(path)
    except NotGGUF as error:
        assert "m.gguf" in str(error)
