"""The life of one session, event by event, without a scheduler."""

from kvalet.scheduler import (
    CallId,
    Copied,
    CopyFound,
    CopyMoved,
    CopyStarted,
    DecodeDone,
    DecodeStarted,
    Event,
    Outlook,
    PrefillDone,
    PrefillStarted,
    Released,
    Restored,
    RestoreStarted,
    Session,
    SessionId,
    ToolEnded,
    ToolStarted,
    TurnAdmitted,
    TurnSubmitted,
)


class Life:
    """Things that happen to one session, one verb each.

    An *outlook* hears of them first, as it does from a scheduler.
    """

    def __init__(self, outlook: Outlook | None = None, name: str = "a") -> None:
        self.session = Session(id=SessionId(name))
        self._outlook = outlook

    @property
    def slot(self) -> int:
        """Where its state is, or is going to be."""
        assert self.session.slot is not None
        return self.session.slot

    def happen(self, event: Event) -> None:
        """Let any event happen."""
        if self._outlook is not None:
            self._outlook.hear(self.session, event)
        self.session.apply(event)

    def submit(self, prompt: int, prefix: int = 0, *, at_s: float = 0.0) -> None:
        self.happen(
            TurnSubmitted(
                at_s=at_s,
                session=self.session.id,
                prompt_tokens=prompt,
                prefix_tokens=prefix,
                max_output_tokens=1000,
            )
        )

    def admit(self, slot: int | None = None, *, at_s: float = 0.0) -> None:
        """Let its turn in, on the slot that it has if none is named."""
        if slot is None:
            slot = self.session.slot or 0
        self.happen(
            TurnAdmitted(at_s=at_s, session=self.session.id, slot=slot, forced=False)
        )

    def prefill(
        self, *, at_s: float = 0.0, seconds: float = 0.0, busy_s: float | None = None
    ) -> None:
        session = self.session
        assert session.turn is not None
        reused_tokens = session.reusable_tokens
        self.happen(PrefillStarted(at_s=at_s, session=session.id, slot=self.slot))
        self.happen(
            PrefillDone(
                at_s=at_s + seconds,
                session=session.id,
                computed_tokens=session.turn.prompt_tokens - reused_tokens,
                reused_tokens=reused_tokens,
                expected_tokens=reused_tokens,
                busy_s=busy_s,
            )
        )

    def decode(
        self, output: int = 1, *, at_s: float = 0.0, seconds: float = 0.0
    ) -> None:
        session = self.session
        self.happen(DecodeStarted(at_s=at_s, session=session.id, slot=self.slot))
        self.happen(
            DecodeDone(
                at_s=at_s + seconds,
                session=session.id,
                output_tokens=output,
                kv_tokens=session.held_tokens + output - 1,
            )
        )

    def run(self, prompt: int, *, at_s: float = 0.0, seconds: float = 0.0) -> None:
        """Have a turn whose answer takes so many *seconds*."""
        self.submit(prompt, self.session.kv_tokens, at_s=at_s)
        self.admit(at_s=at_s)
        self.prefill(at_s=at_s)
        self.decode(at_s=at_s, seconds=seconds)

    def tool(
        self,
        call: str = "c",
        *,
        tool: str = "Bash",
        tool_class: str = "other",
        expected_s: float | None = None,
        at_s: float = 0.0,
    ) -> None:
        self.happen(
            ToolStarted(
                at_s=at_s,
                session=self.session.id,
                call=CallId(call),
                tool=tool,
                tool_class=tool_class,
                expected_s=expected_s,
            )
        )

    def end_tool(
        self,
        call: str = "c",
        *,
        tool: str = "Bash",
        seconds: float = 1.0,
        at_s: float = 0.0,
    ) -> None:
        self.happen(
            ToolEnded(
                at_s=at_s,
                session=self.session.id,
                call=CallId(call),
                tool=tool,
                seconds=seconds,
                status="ok",
            )
        )

    def copy(
        self,
        tokens: int | None = None,
        *,
        nbytes: int | None = None,
        seconds: float = 1.0,
        tier: str = "host",
    ) -> None:
        """Begin to copy its first *tokens*, by default all, and end it."""
        session = self.session
        tokens = session.held_tokens if tokens is None else tokens
        self.happen(
            CopyStarted(at_s=0, session=session.id, slot=self.slot, kv_tokens=tokens)
        )
        self.copied(tokens, nbytes=nbytes, seconds=seconds, tier=tier)

    def copied(
        self,
        tokens: int,
        *,
        nbytes: int | None = None,
        seconds: float = 1.0,
        tier: str = "host",
    ) -> None:
        """End the copy that runs."""
        self.happen(
            Copied(
                at_s=0,
                session=self.session.id,
                kv_tokens=tokens,
                nbytes=tokens if nbytes is None else nbytes,
                seconds=seconds,
                tier=tier,
            )
        )

    def restore(self) -> None:
        """Begin to bring its copy back."""
        session = self.session
        self.happen(
            RestoreStarted(
                at_s=0,
                session=session.id,
                slot=session.slot or 0,
                kv_tokens=session.copied_tokens,
            )
        )

    def restored(self, *, seconds: float = 1.0, tier: str = "host") -> None:
        """End the restore that runs."""
        tokens = self.session.copied_tokens
        self.happen(
            Restored(
                at_s=0,
                session=self.session.id,
                kv_tokens=tokens,
                nbytes=tokens,
                seconds=seconds,
                tier=tier,
            )
        )

    def release(self) -> None:
        copied_tokens = self.session.copied_tokens
        self.happen(
            Released(
                at_s=0,
                session=self.session.id,
                slot=self.slot,
                kept_tokens=copied_tokens,
            )
        )

    def find(self, tokens: int, tier: str | None = None) -> None:
        """Find a copy of so many *tokens* in the store."""
        session = self.session.id
        self.happen(CopyFound(at_s=0, session=session, kv_tokens=tokens))
        if tier is not None:
            self.happen(CopyMoved(at_s=0, session=session, tier=tier))
