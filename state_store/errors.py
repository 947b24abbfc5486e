"""What a state store raises.

    StateStoreError
    + StateMissing      the key holds nothing (never parked, dropped or evicted)
    + StateCorrupt      what came back is not what was parked
    + StoreFull         the state does not fit, even with everything else evicted

None of them may reach the agent: the caller counts it and computes the state again.
"""


class StateStoreError(Exception):
    """Root of everything that a state store raises."""


class StateMissing(StateStoreError):
    """No state is parked under this key."""


class StateCorrupt(StateStoreError):
    """The parked state differs from its manifest."""


class StoreFull(StateStoreError):
    """The state is larger than the whole budget of the store."""
