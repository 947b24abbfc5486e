"""Sealed bytes open for whom they were sealed, come back exact, and nothing shows."""

import base64
import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvalet.state_store import StateCorrupt, StoreUnusable
from kvalet.state_store.aes_gcm import AesGcmSealer, keys_from_environment

OLD, NEW, OTHER = (bytes([number]) * 32 for number in (1, 2, 3))
SEALER = AesGcmSealer({"new": NEW, "old": OLD})
WITHOUT_LIBRARY = """
import sys
sys.modules["cryptography"] = None
from kvalet.state_store import StoreUnusable
from kvalet.state_store.aes_gcm import AesGcmSealer
try:
    AesGcmSealer({"a": bytes(32)})
except StoreUnusable as error:
    print(error)
"""


def flipped(data: bytes, bit: int) -> bytes:
    """Return *data* with one bit changed."""
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def encoded(key: bytes) -> str:
    """Return a key as it stands in the environment."""
    return base64.b64encode(key).decode()


# ---- sealing -------------------------------------------------------------------------


@given(tenant=st.text(), label=st.text(), data=st.binary(max_size=2000))
def test_what_was_sealed_opens(tenant: str, label: str, data: bytes) -> None:
    """Whatever tenant, label and data are; also from views of larger buffers."""
    sealed = SEALER.seal(tenant, label, memoryview(b"x" + data)[1:])
    assert SEALER.open(tenant, label, sealed) == data
    assert SEALER.open(tenant, label, memoryview(b"x" + bytes(sealed))[1:]) == data


@pytest.mark.parametrize("length_bytes", [0, 1, 15, 16, 17, 2**20, 2**20 + 1, 5 << 20])
def test_sizes_around_the_pieces(length_bytes: int) -> None:
    """It comes back whole where it is handed to the library in pieces."""
    data = bytes(range(256)) * (length_bytes // 256 + 1)
    data = data[:length_bytes]
    assert SEALER.open("t", "l", SEALER.seal("t", "l", data)) == data


def test_every_flipped_bit_is_found() -> None:
    """One changed bit anywhere, in the head as well, and nothing comes out."""
    sealed = bytes(SEALER.seal("tenant", "label", b"the rows"))
    for bit in range(8 * len(sealed)):
        with pytest.raises(StateCorrupt):
            SEALER.open("tenant", "label", flipped(sealed, bit))


def test_every_cut_is_found() -> None:
    """A sealed piece that lacks its end, or has more behind it, is none."""
    sealed = bytes(SEALER.seal("tenant", "label", b"the rows"))
    for length in range(len(sealed)):
        with pytest.raises(StateCorrupt):
            SEALER.open("tenant", "label", sealed[:length])
    with pytest.raises(StateCorrupt):
        SEALER.open("tenant", "label", sealed + b"\0")


@given(
    sealed_for=st.tuples(st.text(), st.text()),
    opened_for=st.tuples(st.text(), st.text()),
)
def test_it_opens_in_its_own_place_alone(
    sealed_for: tuple[str, str], opened_for: tuple[str, str]
) -> None:
    """Another tenant or label does not open it, however the two are divided."""
    sealed = SEALER.seal(*sealed_for, b"rows")
    if sealed_for == opened_for:
        assert SEALER.open(*opened_for, sealed) == b"rows"
    else:
        with pytest.raises(StateCorrupt, match="another tenant or place"):
            SEALER.open(*opened_for, sealed)


def test_tenant_and_label_are_not_run_together() -> None:
    """The same letters, divided otherwise, are another place."""
    with pytest.raises(StateCorrupt):
        SEALER.open("a", "bc", SEALER.seal("ab", "c", b"rows"))


def test_the_same_data_never_looks_alike() -> None:
    """Equal data gives different bytes each time, all of which open."""
    pieces = {bytes(SEALER.seal("t", "l", b"rows")) for _ in range(100)}
    assert len(pieces) == 100
    assert {bytes(SEALER.open("t", "l", piece)) for piece in pieces} == {b"rows"}


def test_the_data_does_not_show() -> None:
    """Neither the data nor tenant and label are in what is written."""
    sealed = bytes(SEALER.seal("the tenant", "the label", b"the secret rows" * 9))
    for part in (b"secret", b"tenant", b"label"):
        assert part not in sealed


def test_threads_share_one_sealer() -> None:
    """Sealing and opening for many tenants at once mixes nothing up."""

    def round_trip(number: int) -> bool:
        tenant, data = f"tenant {number % 7}", bytes([number]) * 100_000
        return SEALER.open(tenant, "l", SEALER.seal(tenant, "l", data)) == data

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(round_trip, range(200)))


# ---- names ---------------------------------------------------------------------------


@given(st.lists(st.tuples(st.text(), st.text()), min_size=2, max_size=5, unique=True))
def test_names_differ(places: list[tuple[str, str]]) -> None:
    """32 hex digits, alike only for the same text of the same tenant."""
    names = [SEALER.name(*place) for place in places]
    assert all(
        len(name) == 32 and not set(name) - set("0123456789abcdef") for name in names
    )
    assert len(set(names)) == len(places)
    assert names == [SEALER.name(*place) for place in places]


def test_names_need_the_key() -> None:
    """Who has other keys can't tell which name a session has."""
    assert AesGcmSealer({"new": OTHER}).name("t", "s") != SEALER.name("t", "s")


# ---- rotation ------------------------------------------------------------------------


def test_rotation() -> None:
    """A new first key seals, the old ones open, and the names stay."""
    rings = [
        AesGcmSealer({"1": OLD}),
        AesGcmSealer({"2": NEW, "1": OLD}),
        AesGcmSealer({"3": OTHER, "2": NEW, "1": OLD}),
    ]
    assert [ring.key_id for ring in rings] == ["1", "2", "3"]
    assert len({ring.name("t", "session") for ring in rings}) == 1
    for older, newer in pairwise(rings):
        assert newer.open("t", "l", older.seal("t", "l", b"rows")) == b"rows"
        with pytest.raises(StateCorrupt, match=f"key '{newer.key_id}'"):
            older.open("t", "l", newer.seal("t", "l", b"rows"))


def test_the_last_key_names() -> None:
    """Without the oldest key names change, and its states are found no more."""
    both, alone = AesGcmSealer({"2": NEW, "1": OLD}), AesGcmSealer({"2": NEW})
    assert both.name("t", "session") != alone.name("t", "session")
    with pytest.raises(StateCorrupt):
        alone.open("t", "l", AesGcmSealer({"1": OLD}).seal("t", "l", b"rows"))


def test_the_id_is_part_of_the_seal() -> None:
    """The same key under another id does not open."""
    sealed = bytes(AesGcmSealer({"a": OLD}).seal("t", "l", b"rows"))
    with pytest.raises(StateCorrupt):
        AesGcmSealer({"b": OLD}).open("t", "l", sealed)
    renamed = sealed.replace(b"\x01a", b"\x01b", 1)
    with pytest.raises(StateCorrupt):
        AesGcmSealer({"b": OLD}).open("t", "l", renamed)


# ---- keys ----------------------------------------------------------------------------


def test_keys_from_the_environment() -> None:
    """As many as there are, in their order; space around entries is no matter."""
    text = f"2026b:{encoded(NEW)}, 2026a:{encoded(OLD)} "
    assert list(keys_from_environment(text).items()) == [("2026b", NEW), ("2026a", OLD)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "entry 1 of KVALET_STORE_KEYS begins with no id"),
        (encoded(OLD), "entry 1 of KVALET_STORE_KEYS begins with no id"),
        (f"{encoded(OLD)}:a", "entry 1 of KVALET_STORE_KEYS begins with no id"),
        (f"a:{encoded(OLD)},", "entry 2 of KVALET_STORE_KEYS begins with no id"),
        (f"a b:{encoded(OLD)}", "letters, digits and ._-"),
        (f"a:{encoded(OLD)},a:{encoded(NEW)}", "entry 2 .* the id of one before it"),
        (f"a:{encoded(OLD[:16])}", "a key of 16 bytes; AES-256 takes 32"),
        (f"a:{encoded(OLD * 2)}", "a key of 64 bytes"),
        (f"a:{OLD.hex()}", "a key of 48 bytes"),
        (f"a:{encoded(OLD)[:-1]}", "entry 1 of KVALET_STORE_KEYS is not base64"),
        (f"a:{encoded(OLD)}!", "is not base64"),
        ("a:ключ", "is not base64"),
    ],
)
def test_wrong_keys_are_a_sentence(text: str, sentence: str) -> None:
    """It says which entry and what about it, and shows nothing of the text."""
    with pytest.raises(StoreUnusable, match=sentence) as caught:
        keys_from_environment(text)
    assert caught.value.__cause__ is None
    for part in (encoded(OLD)[:20], encoded(NEW)[:20], OLD.hex()[:20], "ключ"):
        assert part not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({}, "at least one key"),
        ({"a": bytes(16)}, "store key 'a' has 16 bytes; AES-256 takes 32"),
        ({"x" * 17: bytes(32)}, "1 to 16 letters"),
    ],
)
def test_a_sealer_takes_no_wrong_keys(keys: dict[str, bytes], sentence: str) -> None:
    """A ring without keys, a short key, an id that could be a key are refused."""
    with pytest.raises(StoreUnusable, match=sentence):
        AesGcmSealer(keys)


def test_keys_never_show(caplog: pytest.LogCaptureFixture) -> None:
    """No repr, no error and no log line has anything of a key."""
    caplog.set_level(logging.DEBUG)
    said = [repr(SEALER), str(SEALER)]
    for data in (b"", b"\x01\x03new" + bytes(40), b"\x01\x05other" + bytes(40)):
        with pytest.raises(StateCorrupt) as caught:
            SEALER.open("t", "l", data)
        said.append(repr(caught.value))
    said.append(caplog.text)
    for key in (OLD, NEW):
        for form in (repr(key)[2:12], key.hex()[:12], encoded(key)[:12]):
            assert form not in "".join(said)


def test_a_missing_library_is_a_sentence() -> None:
    """The module can be imported without it; making a sealer names the command."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_LIBRARY],
        check=True,
        capture_output=True,
        text=True,
    )
    assert "pip install 'kvalet[crypto]'" in done.stdout
