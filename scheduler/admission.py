"""How turns get in: the head of the queue, as long as it fits.

Admission is a transaction: slot and KV tokens for all that the turn may come to are
reserved at once, or nothing is. Where the head does not fit, others make room for it;
meanwhile somebody who fits as it is may go before it, but not for long.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from .books import Books, needed_tokens, rank
from .departures import Departures
from .events import SessionId, TurnAdmitted, TurnRejected
from .link import Link
from .plan import Draft
from .policy import Policy, Victim, View
from .queue import Claim, Head, Rank
from .room import Lack, choose_victims
from .session import Residency, Session
from .turn import Turn

# So many turns are let in beyond those that prefill; more would fix the order of turns
# too early, and hold memory that is not used yet.
_LOOKAHEAD = 2
_FOLLOWERS = 8

# The first level of attained service ends at a minute, each next one lasts four times
# as long.
_LEVEL_S, _LEVEL_RATIO = 60.0, 4.0

# So long a head lets others pass that fit; then what comes free is kept for it.
_PATIENCE_S = 10.0


class _Blocked(NamedTuple):
    """Who could not get in, with how much memory free, and how long that holds.

    Expected waits change slowly: to price everybody again at every event would find
    the same, at a cost. Only a policy that decides by expected waits is spared.
    """

    session: SessionId | None
    forced: bool
    free_tokens: int
    until_s: float

    def holds(
        self, session: SessionId, forced: bool, free_tokens: int, now_s: float
    ) -> bool:
        return (
            session == self.session
            and forced == self.forced
            and free_tokens <= self.free_tokens
            and now_s < self.until_s
        )


class Admission:
    """Admits turns, ``max_prefills`` at most between admission and first token."""

    def __init__(
        self,
        books: Books,
        policy: Policy,
        view: View,
        departures: Departures,
        link: Link,
        max_prefills: int,
        age_bound_s: float | None,
    ) -> None:
        self._books = books
        self._policy = policy
        self._view = view
        self._departures = departures
        self._link = link
        self._max_prefills = max_prefills
        self._age_bound_s = age_bound_s
        self._blocked = _Blocked(None, False, 0, -math.inf)
        self._admitted = False  # anybody, by the latest plan
        self._hopeless: list[tuple[Session, Turn]] = []
        self.forced = 0

    @property
    def retry_s(self) -> float | None:
        """When to look again at a turn that memory keeps out, if time may let it in.

        Each admission changes the age bound, which the next look goes by.
        """
        again = self._policy.traits.ripens or self._admitted
        return self._blocked.until_s if again else None

    @property
    def rejections_due(self) -> bool:
        """Whether the next plan has a turn to reject."""
        return bool(self._hopeless)

    def enqueue(self, session: Session) -> None:
        """Queue a turn that has been submitted, or mark it for rejection."""
        self._books.end_wait(session)
        turn = session.turn
        assert turn is not None
        if turn.tokens > self._books.limit_tokens:
            self._hopeless.append((session, turn))
            return
        self._books.queue.push(
            Claim(
                session=session.id,
                rank=rank(session),
                submitted_s=turn.submitted_s,
                tenant=session.tenant,
                priority=session.priority,
                due_s=self._due_s(session, turn),
                attained_s=_attained_level_s(session),
                tokens=turn.tokens,
            )
        )

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
        self._admitted = False
        most = self._max_prefills + _LOOKAHEAD
        if not books.queue or len(books.prefilling) >= most:
            return False
        self._bound_age()
        while len(books.prefilling) < most:
            head = books.queue.head(now_s)
            if head is None:
                return False
            session = books.sessions[head.session]
            if not self._has_turn(session):
                return False
            head = self._aged(head, session, now_s)
            forced = head.forced or (books.idle and rank(session) is not Rank.NEW)
            free_tokens = books.ledger.free_tokens
            patient = self._policy.traits.departure is None
            blocked = self._blocked
            if patient and blocked.holds(head.session, forced, free_tokens, now_s):
                return True
            if self._may_enter(session, forced, draft, now_s):
                self._take(session, head, draft, now_s)
            elif head.forced or not self._fill_in(session, draft, now_s):
                until_s = now_s + self._view.retry_s
                free_tokens = books.ledger.free_tokens
                self._blocked = _Blocked(head.session, forced, free_tokens, until_s)
                return True
        return False

    def _aged(self, head: Head, session: Session, now_s: float) -> Head:
        """Return *head* as a forced one if its age would force it, and it is kept out.

        The queue's order is no reason to wait for the first in it, but the policy may
        not admit it.
        """
        turn = session.turn
        assert turn is not None
        aged = now_s >= turn.submitted_s + self._books.queue.age_bound_s
        if head.forced or not aged or self._fits(session, self._reserve(session)):
            return head
        return Head(head.session, True)

    def _bound_age(self) -> None:
        """Derive the bound from how turns get in now, unless it was set."""
        books, outlook = self._books, self._view.outlook
        if self._age_bound_s is None and books.queue:
            tokens = outlook.pace.turn_tokens
            move_s = min(
                outlook.save_s(tokens) + outlook.restore_s(tokens),
                outlook.prefill_s(tokens),
            )
            bound_s = outlook.pace.age_bound_s(len(books.queue), move_s)
            books.queue.age_bound_s = bound_s

    def _fill_in(self, blocked: Session, draft: Draft, now_s: float) -> bool:
        """Let somebody in who fits as it is while *blocked* waits for its room.

        Otherwise memory lies idle before a large context.
        """
        assert blocked.turn is not None
        if now_s - blocked.turn.submitted_s > _PATIENCE_S:
            return False
        books = self._books
        for session_id in books.queue.followers(_FOLLOWERS):
            session = books.sessions[session_id]
            if session is blocked or not self._has_turn(session):
                continue
            reserve = self._reserve(session)
            if rank(session) is Rank.NEW:
                lack = self._lack(session, reserve)
                if not self._policy.admits(session, lack.tokens, self._view, now_s):
                    continue
            if self._fits(session, reserve):
                self._take(session, Head(session_id, False), draft, now_s)
                return True
        return False

    def _reserve(self, session: Session) -> int:
        """Return what a turn has to leave free for the growth of those resident."""
        if self._policy.traits.reserves_growth and session.slot is None:
            return self._view.growth_tokens
        return 0

    def _has_turn(self, session: Session) -> bool:
        """Return whether the accelerator or the link would get to *session* soon.

        Beyond those that prefill, resident turns are let in for what they grow by, and
        parked ones so that their restore overlaps. Who has all to compute waits
        outside: its memory would only lie idle.
        """
        admitted = len(self._books.prefilling)
        if admitted < self._max_prefills:
            return True
        ahead = session.slot is not None or (
            session.residency is Residency.PARKED and not self._recomputes(session)
        )
        return ahead and admitted < self._max_prefills + _LOOKAHEAD

    def _may_enter(
        self, session: Session, forced: bool, draft: Draft, now_s: float
    ) -> bool:
        """Return whether *session* fits now; let others make room where they should."""
        reserve = 0 if forced else self._reserve(session)
        lack = self._lack(session, reserve)
        new = rank(session) is Rank.NEW and not forced
        if new and not self._policy.admits(session, lack.tokens, self._view, now_s):
            return False
        if lack.tokens <= 0 and lack.slots <= 0:
            return True
        self._make_room(session, lack, forced, draft, now_s)
        return self._fits(session, reserve)

    def _fits(self, session: Session, reserve: int) -> bool:
        ledger = self._books.ledger
        slot_free = session.slot is not None or ledger.free_slots > 0
        return slot_free and self._growth(session) + reserve <= ledger.free_tokens

    def _due_s(self, session: Session, turn: Turn) -> float | None:
        """Return when the turn must go before others to meet its deadline."""
        if turn.deadline_s is None:
            return None
        outlook = self._view.outlook
        kept_tokens = session.kv_tokens
        work_s = outlook.prefill_s(turn.prompt_tokens - kept_tokens, kept_tokens)
        if session.slot is None:
            work_s += outlook.back_s(kept_tokens, session.tier)
        # Another turn may be at work when this one becomes urgent.
        return turn.deadline_s - 2 * work_s

    def _growth(self, session: Session) -> int:
        return needed_tokens(session) - self._books.ledger.held_tokens(session.id)

    def _lack(self, session: Session, reserve: int) -> Lack:
        """Return what *session* lacks of what is free now."""
        ledger = self._books.ledger
        return Lack(
            tokens=self._growth(session) + reserve - ledger.free_tokens,
            slots=(session.slot is None) - ledger.free_slots,
        )

    def _take(self, session: Session, head: Head, draft: Draft, now_s: float) -> None:
        books = self._books
        books.queue.remove(session.id)
        slot = session.slot
        if slot is None:
            slot = books.ledger.open(session.id, needed_tokens(session))
        else:
            books.note_growth(self._growth(session))
            books.ledger.resize(session.id, needed_tokens(session))
        recomputed = session.residency is Residency.PARKED and self._recomputes(session)
        admitted = TurnAdmitted(
            at_s=now_s,
            session=session.id,
            slot=slot,
            forced=head.forced,
            recomputed=recomputed,
        )
        session.apply(admitted)
        self._view.outlook.pace.admitted(needed_tokens(session), now_s)
        self.forced += head.forced
        books.prefilling.add(session.id)
        draft.admit.append(admitted)
        self._admitted = True
        if session.residency is Residency.PARKED and not recomputed:
            self._link.want_restore(session)
        else:
            books.startable.append(session)

    def _recomputes(self, session: Session) -> bool:
        """Return whether computing the parked state again beats bringing it back.

        Only a policy that leaves the choice to what was measured has it taken.
        """
        if self._policy.traits.departure is not None:
            return False
        outlook = self._view.outlook
        tokens, tier = session.copied_tokens, session.tier
        restore_s = self._link.backlog_s + outlook.restore_s(tokens, tier)
        return restore_s > outlook.computed_s(session.kv_tokens)

    def _make_room(
        self, session: Session, lack: Lack, forced: bool, draft: Draft, now_s: float
    ) -> None:
        """Let victims go until *session* fits or nobody is left who may be asked.

        Waiting sessions go first. Holders in the queue go, youngest first, only where
        it is forced: for a turn past its bound, or when nothing is in progress that
        could end the deadlock of everyone holding and waiting.
        """
        books = self._books
        leaving = self._link.leaving()
        coming = sum(books.ledger.held_tokens(holder.id) for holder in leaving)
        lack = Lack(tokens=lack.tokens - coming, slots=lack.slots - len(leaving))
        if lack.tokens <= 0 and lack.slots <= 0:
            return
        candidates = self._candidates(session, forced, now_s)
        for victim in choose_victims(candidates, lack, books.ledger):
            self._departures.make_leave(victim, draft, now_s)

    def _candidates(
        self, head: Session, forced: bool, now_s: float
    ) -> Iterator[Victim]:
        for victim in self._policy.victims(self._view, now_s, forced=forced):
            if victim.session.departure is None and _may_go(victim.session):
                yield victim
        if not forced:
            return
        for session_id in self._books.queue.youngest_residents():
            holder = self._books.sessions[session_id]
            if holder is not head and _may_go(holder):
                yield Victim(holder, self._policy.traits.departure)


def _attained_level_s(session: Session) -> float:
    """Return what the session has had so far, in coarse levels.

    Sessions of one level go in the order of arrival. To order them by every second
    would let each new one overtake all others, until their age bound.
    """
    if session.slot is not None:  # it needs its growth only
        return 0.0
    level = int(math.log(1 + session.attained_s / _LEVEL_S, _LEVEL_RATIO))
    return _LEVEL_S * (_LEVEL_RATIO**level - 1)


def _may_go(session: Session) -> bool:
    return session.residency in (Residency.RESIDENT, Residency.PARKING)
