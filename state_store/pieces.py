"""What of a state has to travel to a tier, given what that tier holds of it already."""

from dataclasses import replace

from .copies import Content, Held
from .state import KVState, Manifest


def is_whole(pieces: KVState | None) -> bool:
    """Return whether *pieces* are a state from token 0 on."""
    return pieces is not None and not pieces.manifest.first_token


def piece_for(held: Held, pieces: KVState | None) -> KVState | None:
    """Return what makes a tier that has *held* hold the state that *pieces* end.

    Only the new rows, if they are all that is missing. None if *pieces* are too few.
    """
    if pieces is None:
        return None
    whole = is_whole(pieces)
    if isinstance(held, Content):
        return pieces if whole else None
    if whole:
        return rest_of(pieces, held) or pieces
    return pieces if pieces.manifest.continues(held) else None


def rest_of(state: KVState, base: Manifest) -> KVState | None:
    """Return the rows of *state* behind those of *base*; None if it begins otherwise.

    >>> state = KVState.seal_segments(
    ...     key="s",
    ...     model="m",
    ...     engine="e",
    ...     layout="l",
    ...     token_ids=[1, 2, 3],
    ...     ends=[2, 3],
    ...     payloads=[b"two", b"one"],
    ... )
    >>> base = KVState.seal(
    ...     key="s", model="m", engine="e", layout="l", token_ids=[1, 2], payload=b"two"
    ... )
    >>> rest = rest_of(state, base.manifest)
    >>> rest.payloads, rest.behind(base) == state
    ((b'one',), True)
    """
    count, whole = len(base.segments), state.manifest
    if whole.segments[:count] != base.segments or len(whole.segments) == count:
        return None
    rest = replace(
        whole,
        base_hash=base.token_hash,
        kv_bytes=whole.kv_bytes - base.kv_bytes,
        segments=whole.segments[count:],
    )
    if not rest.continues(base) or rest.kv_bytes < 0 or base.base_hash:
        return None
    return KVState(manifest=rest, payloads=state.payloads[count:])
