"""What a wait, a move or a prefill is expected to take, by what they have taken so far.

It listens to every event, teaches the latency and the cost model with it, and answers
in the scheduler's own terms: sessions and tokens. Until the first move has been seen, a
move is taken to cost half of what computing the tokens costs, so that one gets tried.
"""

from .cost import CostModel
from .events import (
    Copied,
    DecodeDone,
    DecodeStarted,
    Event,
    PrefillAdvanced,
    PrefillDone,
    Restored,
    SessionId,
    ToolEnded,
    ToolStarted,
    TurnAborted,
    TurnSubmitted,
)
from .latency import LatencyModel, OpenCall
from .pace import Pace
from .session import Phase, Residency, Session

USER, OVERHEAD = "user", "overhead"
"""Under what waits are learned in which no tool runs: until whatever follows an answer,
and until the turn that follows a tool. Both are of the class ``user``."""

# Before anything was measured: a token of prefill. Any positive number will do, since
# only costs of one source are compared until then.
_UNKNOWN_TOKEN_S = 1e-3
_UNKNOWN_MOVE = 0.5

# How deep the subagents of subagents are looked at.
_GENERATIONS = 4


class Outlook:
    """Expectations of one accelerator and its agents."""

    def __init__(
        self, *, latency: LatencyModel, cost: CostModel, bytes_per_token: int
    ) -> None:
        self.latency = latency
        self.cost = cost
        self._bytes_per_token = float(bytes_per_token)
        self._batch = _Batch()
        self.pace = Pace()

    # ---- what is expected ------------------------------------------------------------

    def remaining_s(self, session: Session, now_s: float) -> float:
        """Return how much longer *session* will wait before its next turn.

        Who waits for a subagent waits for as long as that has to do, as far as known.
        """
        return self._remaining_s(session, now_s, _GENERATIONS)

    def _remaining_s(self, session: Session, now_s: float, generations: int) -> float:
        if session.turn is not None:
            return 0.0
        if not session.open_calls:
            idle_s = now_s - session.idle_since_s
            return self.latency.remaining_s(_idling(session), USER, idle_s)
        remaining_s = self._tools_s(session, now_s)
        if generations:
            for child in session.children.values():
                if child.blocking:
                    work_s = self._work_s(child, now_s, generations - 1)
                    remaining_s = max(remaining_s, work_s)
        return remaining_s

    def _work_s(self, child: Session, now_s: float, generations: int) -> float:
        """Return what a subagent has to do at least: its tools, or its prompt."""
        turn = child.turn
        if turn is None:
            if not child.open_calls:
                return 0.0
            return self._remaining_s(child, now_s, generations)
        if child.phase is not Phase.PREFILL:
            return 0.0
        there_tokens = child.kv_tokens
        work_s = self.prefill_s(turn.prompt_tokens - there_tokens, there_tokens)
        if child.residency is Residency.PARKED:
            work_s += self.back_s(child.copied_tokens, child.tier)
        return work_s

    def _tools_s(self, session: Session, now_s: float) -> float:
        """Return how much longer the open calls of *session* will take together."""
        calls = session.open_calls.values()
        if len(calls) == 1:  # by far the most frequent case
            (call,) = calls
            if call.expected_s is not None:
                return max(0.0, call.began_s + call.expected_s - now_s)
            elapsed_s = now_s - call.began_s
            return self.latency.remaining_s(call.tool, call.tool_class, elapsed_s)
        known_s = 0.0
        unknown: list[OpenCall] = []
        for call in calls:
            if call.expected_s is None:
                elapsed_s = now_s - call.began_s
                unknown.append(
                    OpenCall(
                        tool=call.tool,
                        tool_class=call.tool_class,
                        elapsed_s=elapsed_s,
                    )
                )
            else:
                known_s = max(known_s, call.began_s + call.expected_s - now_s)
        if not unknown:
            return max(0.0, known_s)
        return max(known_s, self.latency.joint_remaining_s(unknown))

    def returns_within(self, session: Session, now_s: float, horizon_s: float) -> float:
        """Return the probability that its tools end within *horizon_s* from now."""
        calls = session.open_calls.values()
        if not calls or session.awaits_child:
            return 0.0
        probability = 1.0
        for call in calls:
            elapsed_s = now_s - call.began_s
            if call.expected_s is not None:
                probability *= call.expected_s <= elapsed_s + horizon_s
            else:
                probability *= 1.0 - self.latency.survival(
                    call.tool, call.tool_class, elapsed_s, horizon_s
                )
        return probability

    def prefill_s(self, new_tokens: int, context_tokens: int = 0) -> float:
        """Return the seconds for *new_tokens* behind *context_tokens*."""
        if new_tokens <= 0:
            return 0.0
        known = self.cost.prefill_s(new_tokens, context_tokens)
        return new_tokens * _UNKNOWN_TOKEN_S if known is None else known

    @property
    def decoding_sequences(self) -> int:
        """How many sequences decode now."""
        return self._batch.sequences

    @property
    def decoding_tokens(self) -> int:
        """How many tokens of context they have together."""
        return self._batch.context_tokens

    def decode_step_s(self, sequences: int, context_tokens: int) -> float:
        """Return the seconds of one step of a batch; 0 until one was seen."""
        return self.cost.decode_step_s(sequences, context_tokens) or 0.0

    def save_s(self, tokens: int) -> float:
        """Return the seconds to copy *tokens* out."""
        if tokens <= 0:
            return 0.0
        nbytes = self._nbytes(tokens)
        known = self.cost.save_s(nbytes) if nbytes else None
        return _UNKNOWN_MOVE * self.prefill_s(tokens) if known is None else known

    def restore_s(self, tokens: int, tier: str | None = None) -> float:
        """Return the seconds to copy *tokens* back from *tier*."""
        if tokens <= 0:
            return 0.0
        nbytes = self._nbytes(tokens)
        known = self.cost.restore_s(nbytes, tier) if nbytes else None
        return _UNKNOWN_MOVE * self.prefill_s(tokens) if known is None else known

    def computed_s(self, tokens: int, context_tokens: int = 0) -> float:
        """Return what all pay for computing *tokens* once more.

        The link has time to spare where the accelerator has not: who comes while it
        computes waits for it as well, and *t* seconds meet ``turns_per_s * t`` turns.
        """
        seconds = self.prefill_s(tokens, context_tokens)
        return seconds * (1 + self.pace.turns_per_s * seconds)

    def back_s(self, tokens: int, tier: str | None = None) -> float:
        """Return the seconds to have parked *tokens* back, whichever way is shorter."""
        return min(self.restore_s(tokens, tier), self.computed_s(tokens))

    def parked_s(self, session: Session) -> float:
        """Return what parking its state costs: a copy of what is dirty, a way back."""
        return self.save_s(session.dirty_tokens) + self.back_s(session.held_tokens)

    def dropped_s(self, session: Session) -> float:
        """Return what dropping its state costs; an older copy of it helps."""
        copied_tokens = session.copied_tokens
        anew_s = self.computed_s(session.dirty_tokens, copied_tokens)
        return self.back_s(copied_tokens, session.tier) + anew_s

    def worth_s(self, session: Session, now_s: float) -> float:
        """Return the seconds that its copy in the store saves, per second of its wait.

        Whose turn is due, or nearly, counts as if it had a second to go.
        """
        tokens = session.copied_tokens
        saved_s = self.prefill_s(tokens) - self.restore_s(tokens, session.tier)
        return max(0.0, saved_s) / max(1.0, self.remaining_s(session, now_s))

    def moved_s(self, session: Session) -> float:
        """Return what its absence costs, whichever way is shorter."""
        dirty_tokens = session.dirty_tokens
        if not dirty_tokens:
            return self.back_s(session.held_tokens, session.tier)
        return min(self.parked_s(session), self.dropped_s(session))

    # ---- learning --------------------------------------------------------------------

    def hear(self, session: Session, event: Event) -> None:
        """Learn from *event*, which is about to be applied to *session*."""
        match event:
            case ToolEnded():
                self.latency.observe(
                    tool=event.tool,
                    tool_class=event.tool_class,
                    seconds=event.seconds,
                    status=event.status,
                )
            case TurnSubmitted() | ToolStarted():
                self._end_idling(session, event)
            case PrefillAdvanced() | PrefillDone():
                self._learn_prefill(session, event)
            case DecodeStarted():
                self._batch.join(session, event.at_s)
            case DecodeDone() | TurnAborted():
                self._learn_decode(session, event)
            case Copied():
                self._note_size(event.nbytes, event.kv_tokens)
                self.cost.observe_save(event.nbytes, event.seconds, event.tier)
            case Restored():
                self._note_size(event.nbytes, event.kv_tokens)
                self.cost.observe_restore(event.nbytes, event.seconds, event.tier)
            case _:
                pass

    def _end_idling(self, session: Session, event: Event) -> None:
        if session.phase is Phase.IDLE and session.attained_s:
            self.latency.observe(
                tool=_idling(session),
                tool_class=USER,
                seconds=event.at_s - session.idle_since_s,
                status="ok",
            )

    def _learn_prefill(
        self, session: Session, event: PrefillAdvanced | PrefillDone
    ) -> None:
        turn = session.turn
        if turn is None or event.computed_tokens < 1:
            return
        busy_s = event.busy_s
        if busy_s is None:
            busy_s = event.at_s - turn.unit_began_s
        if busy_s > 0:
            self.cost.observe_prefill(
                event.computed_tokens, event.reused_tokens, busy_s
            )

    def _learn_decode(self, session: Session, event: DecodeDone | TurnAborted) -> None:
        stay = self._batch.leave(session, event.at_s)
        if stay is None or not isinstance(event, DecodeDone):
            return
        steps = event.output_tokens - 1
        if steps > 0 and stay.seconds > 0:
            self.cost.observe_decode_step(
                stay.sequences, stay.context_tokens, stay.seconds / steps
            )

    def _note_size(self, nbytes: int, tokens: int) -> None:
        if not self._bytes_per_token and tokens > 0:
            self._bytes_per_token = nbytes / tokens

    def _nbytes(self, tokens: int) -> int:
        return round(tokens * self._bytes_per_token)


def _idling(session: Session) -> str:
    """Return under which name its idling is learned: with a tool done, or without."""
    return OVERHEAD if session.idle_after_tool else USER


class _Stay:
    """What a sequence's decode met on the average while it lasted."""

    __slots__ = ("context_tokens", "seconds", "sequences")

    def __init__(self, seconds: float, sequences: int, context_tokens: int) -> None:
        self.seconds = seconds
        self.sequences = sequences
        self.context_tokens = context_tokens


class _Batch:
    """Who decodes now, and the integrals over time that give averages.

    Every sequence remembers the integrals at its start; their differences over its stay
    are the mean batch and the mean context, at O(1) a change.
    """

    def __init__(self) -> None:
        self._at_s = 0.0
        self.sequences = 0
        self.context_tokens = 0
        self._sequence_s = 0.0
        self._context_s = 0.0
        self._joined: dict[SessionId, tuple[float, float, float, int]] = {}

    def join(self, session: Session, now_s: float) -> None:
        """A sequence begins to decode."""
        self._advance(now_s)
        context = session.held_tokens
        self._joined[session.id] = (now_s, self._sequence_s, self._context_s, context)
        self.sequences += 1
        self.context_tokens += context

    def leave(self, session: Session, now_s: float) -> _Stay | None:
        """It has ended; return what it met, None if it did not decode."""
        joined = self._joined.pop(session.id, None)
        if joined is None:
            return None
        self._advance(now_s)
        began_s, sequence_s, context_s, context = joined
        self.sequences -= 1
        self.context_tokens -= context
        seconds = now_s - began_s
        if seconds <= 0:
            return None
        return _Stay(
            seconds,
            max(1, round((self._sequence_s - sequence_s) / seconds)),
            round((self._context_s - context_s) / seconds),
        )

    def _advance(self, now_s: float) -> None:
        passed_s = now_s - self._at_s
        self._sequence_s += passed_s * self.sequences
        self._context_s += passed_s * self.context_tokens
        self._at_s = now_s
