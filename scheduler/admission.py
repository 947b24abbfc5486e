"""How turns get in: the head of the queue, as long as it fits.

Admission is a transaction: slot and KV tokens for all that the turn may come to are
reserved at once, or nothing is. Where the head does not fit, others make room for it;
nobody overtakes it meanwhile.
"""

from collections.abc import Iterator

from .books import Books, needed_tokens, rank
from .departures import Departures
from .events import RestoreStarted, TurnAdmitted, TurnRejected
from .plan import Draft
from .policy import Policy
from .queue import Head
from .room import Lack, choose_victims
from .session import Residency, Session, Turn


class Admission:
    """Admits turns, ``max_prefills`` at most between admission and first token."""

    def __init__(
        self, books: Books, policy: Policy, departures: Departures, max_prefills: int
    ) -> None:
        self._books = books
        self._policy = policy
        self._departures = departures
        self._max_prefills = max_prefills
        self._hopeless: list[tuple[Session, Turn]] = []
        self.forced = 0

    @property
    def rejections_due(self) -> bool:
        """Whether the next plan has a turn to reject."""
        return bool(self._hopeless)

    def enqueue(self, session: Session, submitted_s: float) -> None:
        """Queue a turn that has been submitted, or mark it for rejection."""
        self._books.waits.pop(session.id, None)
        turn = session.turn
        assert turn is not None
        if turn.tokens > self._books.limit_tokens:
            self._hopeless.append((session, turn))
        else:
            self._books.queue.push(session.id, rank(session), submitted_s)

    def reject_hopeless(self, draft: Draft, now_s: float) -> None:
        """Reject the turns that can never run here."""
        for session, turn in self._hopeless:
            if session.turn is not turn:
                continue  # aborted meanwhile
            reason = (
                f"the turn may come to {turn.tokens} tokens "
                f"({turn.prompt_tokens} of prompt, {turn.max_output_tokens} of "
                f"output); one sequence holds {self._books.limit_tokens}"
            )
            event = TurnRejected(at_s=now_s, session=session.id, reason=reason)
            session.apply(event)
            self._books.settle(session)
            draft.reject.append(event)
        self._hopeless.clear()

    def admit_fitting(self, draft: Draft, now_s: float) -> bool:
        """Admit from the head on; return whether memory stopped it."""
        books = self._books
        while len(books.prefilling) < self._max_prefills:
            head = books.queue.head(now_s)
            if head is None:
                return False
            session = books.sessions[head.session]
            if not self._fits(session):
                self._make_room(session, head, draft, now_s)
                if not self._fits(session):
                    return True
            self._take(session, head, draft, now_s)
        return False

    def _growth(self, session: Session) -> int:
        return needed_tokens(session) - self._books.ledger.held_tokens(session.id)

    def _fits(self, session: Session) -> bool:
        ledger = self._books.ledger
        slot_free = session.slot is not None or ledger.free_slots > 0
        return slot_free and self._growth(session) <= ledger.free_tokens

    def _take(self, session: Session, head: Head, draft: Draft, now_s: float) -> None:
        books = self._books
        books.queue.remove(session.id)
        slot = session.slot
        if slot is None:
            slot = books.ledger.open(session.id, needed_tokens(session))
        else:
            books.ledger.resize(session.id, needed_tokens(session))
        admitted = TurnAdmitted(
            at_s=now_s, session=session.id, slot=slot, forced=head.forced
        )
        session.apply(admitted)
        self.forced += head.forced
        books.prefilling.add(session.id)
        books.startable.append(session)
        draft.admit.append(admitted)
        if session.residency is Residency.PARKED:
            self._restore(session, slot, draft, now_s)

    def _restore(self, session: Session, slot: int, draft: Draft, now_s: float) -> None:
        event = RestoreStarted(
            at_s=now_s, session=session.id, slot=slot, kv_tokens=session.copied_tokens
        )
        session.apply(event)
        self._books.moving.add(session.id)
        draft.restore.append(event)

    def _make_room(
        self, session: Session, head: Head, draft: Draft, now_s: float
    ) -> None:
        """Let victims go until *session* fits or nobody is left who may be asked.

        Waiting sessions go first. Holders in the queue go, youngest first, only for a
        turn past the age bound, or when nothing is in progress that could end the
        deadlock of everyone holding and waiting.
        """
        queue_too = self._books.idle or head.forced
        candidates = self._candidates(session, queue_too, now_s)
        lack = self._lack(session)
        for victim in choose_victims(candidates, lack, self._books.ledger):
            self._departures.make_leave(victim, draft, now_s)

    def _lack(self, session: Session) -> Lack:
        """Return what *session* lacks beyond what copies in progress will free."""
        books = self._books
        leaving = [
            moving.id
            for moving in map(books.sessions.__getitem__, books.moving)
            if moving.departure is not None
        ]
        coming = sum(map(books.ledger.held_tokens, leaving))
        return Lack(
            tokens=self._growth(session) - books.ledger.free_tokens - coming,
            slots=(session.slot is None) - books.ledger.free_slots - len(leaving),
        )

    def _candidates(
        self, head: Session, queue_too: bool, now_s: float
    ) -> Iterator[Session]:
        for victim in self._policy.victims(self._books, now_s):
            if victim.residency is Residency.RESIDENT and victim.departure is None:
                yield victim
        if not queue_too:
            return
        for session_id in self._books.queue.youngest_first():
            holder = self._books.sessions[session_id]
            if holder is not head and holder.residency is Residency.RESIDENT:
                yield holder
