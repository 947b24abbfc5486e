"""States for the tests of stores: small, exact, and alike where it is asked for.

The rows of a token are a function of the token alone, so that equal runs of tokens give
equal segments. Payloads are buffers of their own that can be written to: a test may
damage them where a store keeps them.
"""

from array import array
from collections.abc import Sequence
from dataclasses import replace

from kvalet.state_store import KVState, token_blocks

ROW_BYTES = 32


def make_state(
    key: str, payload: bytes = b"rows", kv_bytes: int | None = None
) -> KVState:
    """Return a state of three tokens in one segment."""
    return KVState.seal(
        key=key,
        model="model",
        engine="engine",
        layout="layout",
        token_ids=[1, 2, 3],
        payload=memoryview(bytearray(payload)),
        kv_bytes=kv_bytes,
    )


def make_rows(
    key: str,
    token_ids: Sequence[int],
    first_token: int = 0,
    *,
    unstored_bytes: int = 0,
    model: str = "model",
) -> KVState:
    """Return a state in blocks, or its part from *first_token* on.

    It stands for *unstored_bytes* more than it carries.
    """
    blocks = token_blocks(first_token, len(token_ids))
    payloads = [rows_of(token_ids[start:end]) for start, end in blocks]
    return KVState.seal_segments(
        key=key,
        model=model,
        engine="engine",
        layout="layout",
        token_ids=token_ids,
        ends=[end for _, end in blocks],
        payloads=payloads,
        kv_bytes=sum(map(len, payloads)) + unstored_bytes,
        first_token=first_token,
        head=len(token_ids).to_bytes(4, "little"),
    )


def rows_of(token_ids: Sequence[int]) -> memoryview:
    """Return ``ROW_BYTES`` for each token."""
    repeats = ROW_BYTES // 4
    ids = array("i", [number for number in token_ids for _ in range(repeats)])
    return memoryview(bytearray(ids.tobytes()))


def corrupted(state: KVState) -> KVState:
    """Return *state* with one bit flipped, under its old manifest."""
    first, *rest = state.payloads
    return replace(state, payloads=(bytes([first[0] ^ 1]) + first[1:], *rest))


def copy_of(state: KVState) -> KVState:
    """Return *state* with payloads that nobody else can write to."""
    return replace(state, payloads=tuple(map(bytes, state.payloads)))
