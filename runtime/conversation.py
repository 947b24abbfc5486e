"""What has been said in a session: token ids, and which turn may add to them.

Token ids are kept and never made again from text, so what is reused, copied and
restored is exactly what the model has seen.

One turn at a time adds to a conversation. Another one that is asked for meanwhile is
answered beside it, in a fork of the conversation as it was before, which ends with its
answer: its caller gets that, the conversation does not.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..backends import Message, Tokenizer, common_prefix_tokens
from ..scheduler import InvalidSetting, SessionId, SessionOpened, ToolStarted
from ..state_store import state_key
from .dispatch import Dispatch
from .errors import SessionBusy, SessionEnded, Unsupported, WrongInput
from .homes import Homes

ChatMessage = Message | Mapping[str, str]

_NOTHING = array("i")


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """A prompt that goes behind the first ``keep_tokens`` (all) of the conversation."""

    prompt: str | Sequence[int]
    keep_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace:
    """Messages that are the whole conversation."""

    messages: Sequence[ChatMessage]


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """What becomes of a session's state beyond the session.

    ``durable``: a copy counts once it is in the tier that survives longest.
    ``resumes``: its first turn looks in the store for what somebody has left there.
    ``persists``: a session that ends by an error leaves its state there.
    """

    durable: bool = False
    resumes: bool = False
    persists: bool = False


class Conversation:
    """The token ids of a session, and whether a turn is in progress.

    Invariant: ``said`` is the conversation so far. The first ``kv_tokens`` (as the
    scheduler counts them) of ``tokens`` are those of the KV state; both are the same
    while no turn is in progress. Neither is ever changed in place, so forks share them.
    """

    __slots__ = (
        "_beside",
        "_dispatch",
        "_forks",
        "_homes",
        "_keeping",
        "_main",
        "_resumes",
        "busy",
        "ended",
        "id",
        "key",
        "said",
        "tokens",
    )

    def __init__(
        self,
        homes: Homes,
        opened: SessionOpened,
        said: "array[int]" = _NOTHING,
        keeping: Keeping = Keeping(),
    ) -> None:
        """Open the session that *opened* describes; *said* is what it begins with.

        Raises IllegalMove where its id is taken, InvalidSetting, or SessionEnded.
        """
        if opened.session == "":
            raise InvalidSetting("a session's id must not be empty")
        dispatch = homes.choose(opened.session, opened.parent)
        dispatch.happen(opened)
        self._homes = homes
        self._dispatch = dispatch
        self.id = opened.session
        self.key = state_key(opened.tenant, opened.session)
        self._keeping = keeping
        self._resumes = keeping.resumes
        self.said = self.tokens = said
        self.busy = False
        self.ended = False
        self._forks = 0
        self._beside = 0  # turns that are answered beside it
        self._main: Conversation | None = None
        dispatch.enter(self.id, self)

    @property
    def dispatch(self) -> Dispatch:
        """Where the session lives now, and its events go."""
        return self._dispatch

    @property
    def durable(self) -> bool:
        """Whether a copy counts only once it is where it survives this process."""
        return self._keeping.durable

    def check_open(self) -> None:
        """Raise SessionEnded if it is closed."""
        if self.ended:
            raise SessionEnded(f"session {self.id!r} is closed")

    def fork(self, id: str | None, *, blocking: bool) -> "Conversation":
        """Open a session that begins with what has been said here."""
        self.check_open()
        parent = self._dispatch.scheduler.session(self.id)
        opened = SessionOpened(
            at_s=self._dispatch.clock.now_s(),
            session=self._next_id() if id is None else SessionId(id),
            parent=self.id,
            tenant=parent.tenant,
            weight=parent.weight,
            priority=parent.priority,
            blocking=blocking,
            forked_tokens=len(self.said),
        )
        keeping = Keeping(durable=self.durable)
        return Conversation(self._homes, opened, self.said, keeping)

    def begin(self) -> "Conversation":
        """Return where a turn is to run: here, or beside the one in progress."""
        self.check_open()
        if not self.busy:
            self.busy = True
            return self
        beside = self.fork(None, blocking=False)
        beside.busy, beside._main = True, self
        self._beside += 1
        return beside

    def finish(self) -> None:
        """Let the turn that ``begin`` was called for be over."""
        self.busy = False
        main = self._main
        if main is not None:
            main._beside -= 1
            self.close()

    def close(self, *, failed: bool = False, kept: bool = False) -> None:
        """End the session; raise SessionBusy while a turn is in progress.

        Its state stays in the store if it is *kept*, or *failed* and persists.
        """
        if self.busy or self._beside:
            raise SessionBusy(f"session {self.id!r} has a turn in progress")
        self.ended = True
        kept = kept or (failed and self._keeping.persists)
        self._dispatch.leave(self.id, kept=kept)

    def settle(self, turn_tokens: int) -> None:
        """Move to where a turn of so many tokens should rather run, if anywhere."""
        home = self._homes.better(self._dispatch, self.id, turn_tokens)
        if home is not None and not self._beside:
            self._move(home)

    def flee(self) -> bool:
        """Leave a home that is down; return whether there is another one."""
        self._dispatch.give_up()
        home = self._homes.refuge(self._dispatch)
        if home is None:
            return False
        self._move(home)
        return True

    def _move(self, home: Dispatch) -> None:
        left, now_s = self._dispatch, self._dispatch.clock.now_s()
        session = left.scheduler.session(self.id)
        opened = SessionOpened(
            at_s=now_s,
            session=self.id,
            parent=session.parent,
            tenant=session.tenant,
            weight=session.weight,
            priority=session.priority,
            blocking=session.blocking,
        )
        calls = dict(session.open_calls)
        left.leave(self.id, kept=True)
        home.happen(opened)
        home.enter(self.id, self)
        self._dispatch, self._resumes = home, True
        for call, known in calls.items():
            started = ToolStarted(
                at_s=now_s,
                session=self.id,
                call=call,
                tool=known.tool,
                tool_class=known.tool_class,
                expected_s=known.expected_s,
            )
            home.happen(started)

    async def find(self, prompt: "array[int]", prefix_tokens: int) -> int:
        """Return how much of *prompt* somebody has left in the store, or is here.

        The store is looked in before the first turn at a home only.
        """
        if not self._resumes:
            return prefix_tokens
        self._resumes = False
        self.tokens = prompt  # its first tokens are those of what is found
        found_tokens = await self._dispatch.find(self.id, prompt)
        if not found_tokens:
            self.tokens = self.said
        return found_tokens

    async def encode(self, said: Append | Replace) -> "tuple[array[int], int]":
        """Return the whole prompt, and how many of its tokens lead ``tokens`` too."""
        if isinstance(said, Replace):
            messages = [_message(message) for message in said.messages]
            prompt = array("i", await self._tokenizer.encode_chat(messages))
            return prompt, common_prefix_tokens(self.tokens, prompt)
        kept_tokens = self._kept_tokens(said.keep_tokens)
        kept = self.said
        if kept_tokens < len(kept):
            kept = kept[:kept_tokens]
        new = said.prompt
        if isinstance(new, str):
            new = await self._tokenizer.encode(new)
        return kept + (new if isinstance(new, array) else array("i", new)), kept_tokens

    def _kept_tokens(self, keep_tokens: int | None) -> int:
        said_tokens = len(self.said)
        if keep_tokens is None:
            return said_tokens
        if not 0 <= keep_tokens <= said_tokens:
            raise WrongInput(
                f"keep_tokens must be between 0 and {said_tokens}, the length of "
                f"the conversation so far, not {keep_tokens}"
            )
        return keep_tokens

    def _next_id(self) -> SessionId:
        """Return an id that tells where the fork comes from, the same in every run."""
        while True:
            self._forks += 1
            id = SessionId(f"{self.id}+{self._forks}")
            if not self._dispatch.knows(id):
                return id

    @property
    def _tokenizer(self) -> Tokenizer:
        backend = self._dispatch.backend
        if not isinstance(backend, Tokenizer):
            raise Unsupported(
                f"{type(backend).__name__} has no tokenizer: give token ids, not text"
            )
        return backend


def _message(message: ChatMessage) -> Message:
    if isinstance(message, Message):
        return message
    try:
        return Message(role=message["role"], content=message["content"])
    except KeyError as error:
        raise WrongInput(f"a chat message needs {error}, got {message!r}") from None
