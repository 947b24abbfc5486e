"""A link between sessions and the store, without a scheduler that asks for moves."""

from dataclasses import dataclass, field

from kvalet.scheduler import (
    Capacity,
    CopyStarted,
    CostModel,
    Departure,
    LatencyModel,
    Outlook,
    Residency,
    Session,
    SessionId,
    parse_policy,
)
from kvalet.scheduler.books import Books
from kvalet.scheduler.history import History
from kvalet.scheduler.link import Link
from kvalet.scheduler.plan import Draft
from kvalet.scheduler.sight import Sight

from .life import Life


def known_costs() -> CostModel:
    """Return costs of a second for a hundred tokens of one byte, either way."""
    costs = CostModel()
    for nbytes in (100, 1000):
        costs.observe_save(nbytes, nbytes / 100, "host")
        costs.observe_restore(nbytes, nbytes / 100, "host")
    return costs


@dataclass
class Yard:
    """Sessions that want to be moved; ``pump`` starts transfers, ``end`` ends them."""

    policy: str = "park"
    max_moves: int = 1
    kv_tokens: int = 10_000
    exports_rows: bool = False
    exports_slices: bool = False
    costs: CostModel = field(default_factory=known_costs)
    now_s: float = 0.0
    draft: Draft = field(init=False, default_factory=Draft)

    def __post_init__(self) -> None:
        self.books = Books(
            capacity=Capacity(
                slots=200,
                kv_tokens=self.kv_tokens,
                context_tokens=1000,
                exports_rows=self.exports_rows,
                exports_slices=self.exports_slices,
            ),
            age_bound_s=60,
        )
        self.outlook = Outlook(
            latency=LatencyModel(), cost=self.costs, bytes_per_token=1
        )
        view = Sight(self.books, self.outlook, History())
        policy = parse_policy(self.policy)
        self.link = view.link = Link(self.books, policy, view, self.max_moves)
        self._lives: dict[str, Life] = {}

    # ---- sessions --------------------------------------------------------------------

    def resident(self, name: str, tokens: int, copied_tokens: int = 0) -> Life:
        """Return one who waits, with so many *tokens* on the accelerator."""
        life = self._open(name)
        if copied_tokens:
            life.find(copied_tokens)
        self._admit(life, tokens, copied_tokens)
        if copied_tokens:
            life.restore()
            life.restored()
        life.prefill()
        life.decode()
        self.books.settle(life.session)
        return life

    def leaving(self, name: str, tokens: int, copied_tokens: int = 0) -> Life:
        """Return one who waits and whose copy is wanted, so that it can go."""
        life = self.resident(name, tokens, copied_tokens)
        life.session.departure = Departure.PARK
        self.link.want_copy(life.session)
        return life

    def returning(self, name: str, tokens: int, tier: str | None = None) -> Life:
        """Return one whose turn was let in, and who has to be restored for it."""
        life = self._open(name)
        life.find(tokens, tier)
        self._admit(life, tokens + 1, tokens)
        self.link.want_restore(life.session)
        return life

    def parked(self, name: str, tokens: int) -> Session:
        """Return a session that waits, with its state in the store."""
        life = self._open(name)
        life.find(tokens)
        return life.session

    def _open(self, name: str) -> Life:
        life = self._lives[name] = Life(name=name)
        self.books.sessions[SessionId(name)] = life.session
        return life

    def _admit(self, life: Life, prompt: int, prefix: int) -> None:
        life.submit(prompt, prefix)
        life.admit(self.books.ledger.open(life.session.id, prompt + 1))

    # ---- transfers -------------------------------------------------------------------

    def pump(self) -> str:
        """Start what can start; return whose transfers these are."""
        self.draft = Draft()
        self.link.pump(self.draft, self.now_s)
        return "".join(move.session for move in (*self.draft.restore, *self.draft.copy))

    def copy(self) -> CopyStarted:
        """Start the only copy that can start."""
        self.pump()
        [copy] = self.draft.copy
        return copy

    def end(self, name: str, tokens: int | None = None) -> None:
        """Let the transfer of that session end; of a copy, at so many *tokens*."""
        life, session = self._lives[name], self.books.moving.pop(SessionId(name))
        if session.residency is Residency.RESTORING:
            life.restored()
        else:
            life.copied(session.held_tokens if tokens is None else tokens)
        self.books.settle(session)

    def order(self) -> str:
        """Return whose transfers start, one after the other."""
        names = ""
        while moved := self.pump():
            names += moved
            for name in moved:
                self.end(name)
        return names
