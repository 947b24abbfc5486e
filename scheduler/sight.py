"""What a policy gets to see: the ``View`` of one accelerator's books."""

from collections.abc import Iterable

from .books import Books
from .history import History
from .link import Link
from .outlook import Outlook
from .session import Session


class Sight:
    """What a policy may look at."""

    def __init__(self, books: Books, outlook: Outlook, history: History) -> None:
        self._books = books
        self.outlook = outlook
        self.history = history
        self.link: Link

    @property
    def waiting(self) -> Iterable[Session]:
        return self._books.waits.longest_first

    def foremost(self, most: int, *, dirty: bool = False) -> Iterable[Session]:
        books = self._books
        return (books.dirty_waits if dirty else books.waits).foremost(most)

    @property
    def kv_tokens(self) -> int:
        return self._books.capacity.kv_tokens

    @property
    def free_tokens(self) -> int:
        return self._books.ledger.free_tokens

    @property
    def growth_tokens(self) -> int:
        return self._books.growth_tokens

    @property
    def retry_s(self) -> float:
        return self.outlook.pace.retry_s

    @property
    def backlog_s(self) -> float:
        return self.link.backlog_s
