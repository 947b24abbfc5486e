"""HTTP/1.1 to model servers: many streams at once, each aborted the moment it ends.

``connections`` has our own connections; it needs httptools, so nothing imports it here.
"""

from .errors import (
    ConnectFailed,
    ConnectionBroken,
    HttpError,
    PeerSilent,
    WrongAddress,
)
from .message import Answer, Carrier, Headers, Origin, Outgoing

__all__ = [
    "Answer",
    "Carrier",
    "ConnectFailed",
    "ConnectionBroken",
    "Headers",
    "HttpError",
    "Origin",
    "Outgoing",
    "PeerSilent",
    "WrongAddress",
]
