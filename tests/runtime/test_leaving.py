"""Leaving a stream early, at every chunk."""

import pytest

from .world import ask, open_world, virtual


@pytest.mark.parametrize("chunks", range(2))
def test_leaving_after_some_chunks_frees_the_slot(chunks: int) -> None:
    """Whoever leaves, after whichever chunk, holds up neither the slot nor itself."""

    @virtual
    async def leave() -> None:
        async with open_world() as world:
            session, other = world.session("a"), world.session("b")
            async with session.turn([1] * 20, max_tokens=6) as stream:
                taken = 0
                while taken < chunks:
                    await anext(aiter(stream))
                    taken += 1
            for asking in (other, session):
                reply = await ask(asking, 20)
                assert len(reply.token_ids) == 5
            assert session.context_tokens == 25

    leave()
