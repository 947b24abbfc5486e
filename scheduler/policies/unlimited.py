"""``unlimited``: nothing ever has to leave, since memory has no end.

For replays only: the same accelerator with all the memory that anybody could want. It
is the bound for what a policy can win by moving state, and it is what ``useful_s`` in a
report comes from.
"""

from ..policy import Traits
from ..session import Departure
from .keep import Keep


class Unlimited(Keep):
    """Keep everything, in endless memory."""

    traits = Traits(departure=Departure.DROP, unlimited=True)

    @property
    def name(self) -> str:
        """``unlimited``."""
        return "unlimited"
