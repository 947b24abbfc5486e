"""How many leading tokens two sequences share.

>>> from array import array
>>> common_prefix_tokens(array("i", [1, 2, 3]), array("i", [1, 2, 4, 5]))
2
"""

from array import array


def common_prefix_tokens(first: "array[int]", second: "array[int]") -> int:
    """Return the length of the common prefix; compares memory, not single ids."""
    if len(first) > len(second):
        first, second = second, first
    length = len(first)
    # Arrays of one type compare by memcmp; memoryviews would compare item by item.
    if first == (second if len(second) == length else second[:length]):
        return length
    low, high = 0, length  # invariant: the first `low` tokens agree, `high` do not
    while high - low > 1:
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low
