"""What a state store raises.

    StateStoreError
    + StateMissing        the key holds nothing (never parked, dropped or evicted)
    + StateCorrupt        what came back is not what was parked
    + StateLeased         another process owns the session
    + StoreFull           the state does not fit, even with everything else evicted
    + StoreUnavailable    the store can't be reached, is too slow, or takes no writes
    + StoreUnusable       the store can't work as it is set up; said when it is opened

Only the last one is for the user's eyes. None of the others may reach the agent: the
caller counts it and computes the state again.
"""


class StateStoreError(Exception):
    """Root of everything that a state store raises."""


class StateMissing(StateStoreError):
    """No state is parked under this key."""


class StateCorrupt(StateStoreError):
    """The parked state differs from its manifest."""


class StateLeased(StateStoreError):
    """Another process owns the session of this key, or has taken it over."""


class StoreFull(StateStoreError):
    """The state is larger than the whole budget of the store."""


class StoreUnavailable(StateStoreError):
    """The store does not answer, or not in time, or takes no writes now."""


class StoreUnusable(StateStoreError):
    """The store's address, rights, folder, budget or key are wrong; a sentence."""
