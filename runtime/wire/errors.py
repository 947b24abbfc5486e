"""What goes wrong in reading what the other side says.

WireError
+ BadRequest     a client's request that no model server could make sense of
+ EventTooLong   an event of a stream that does not end
"""


class WireError(Exception):
    """Root of what reading the wire raises."""


class BadRequest(WireError):
    """A client's request makes no sense; ``str()`` of it is for the client to read.

    ``status`` is what it is to be answered with. ``param`` names the field at fault and
    ``code`` the fault, where there is one.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


class EventTooLong(WireError):
    """An event of a stream has grown beyond what may be held of it."""
