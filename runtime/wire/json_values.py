"""What a decoded JSON value is, in words that type checkers follow."""

from typing import TypeGuard


def is_object(value: object) -> TypeGuard[dict[str, object]]:
    """Return whether a decoded JSON value is an object."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[object]]:
    """Return whether a decoded JSON value is an array."""
    return isinstance(value, list)
