"""What goes wrong on the way to a server."""

from ..errors import BackendError


class HttpError(BackendError):
    """Root of what carrying requests raises."""


class WrongAddress(HttpError):
    """The text is no address of a server."""


class ConnectFailed(HttpError):
    """No connection came up; nothing was sent."""


class ConnectionBroken(HttpError):
    """The peer closed, or said what is not HTTP, before its answer was whole."""


class PeerSilent(HttpError):
    """The peer has said nothing for too long."""
