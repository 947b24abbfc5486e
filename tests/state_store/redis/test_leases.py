"""Two owners of one session: never both, and never the one who was overtaken."""

import asyncio

import pytest

from kvalet.state_store import Manifest, StateLeased, StateMissing
from kvalet.state_store.redis.layout import Layout
from kvalet.state_store.sealing import PlainSealer
from tests.servers import Server
from tests.state_store.states import make_rows, make_state

from .conftest import OpenStore

pytestmark = pytest.mark.asyncio

KEY = "t/s"
SESSION = Layout("kvalet", PlainSealer()).session(KEY)


class Listener:
    """An owner that writes down what is lost."""

    def __init__(self) -> None:
        self.lost_keys: list[str] = []
        self.heard = asyncio.Event()

    def lost(self, key: str) -> None:
        self.lost_keys.append(key)
        self.heard.set()

    def moved(self, key: str, tier: str) -> None: ...

    def worth_s(self, manifest: Manifest) -> float:
        return 0.0


def run_out(server: Server) -> None:
    """Have the session's lease run out, as if its owner had not been heard of."""
    assert ":1" in server.ask("DEL", SESSION.lease)


def token_in(server: Server) -> int:
    """Return the fencing token of the session's lease."""
    return int(server.ask("GET", SESSION.lease).split("\r\n")[1].split()[0])


async def test_a_session_has_one_owner(server: Server, open_store: OpenStore) -> None:
    """Who parked it owns it: another can neither park, fetch nor drop; all may look."""
    one, other = await open_store("one"), await open_store("other")
    await one.park(make_state(KEY))
    for refused in (other.park(make_state(KEY)), other.fetch(KEY), other.drop(KEY)):
        with pytest.raises(StateLeased, match="'t/s' is owned by one"):
            await refused
    assert (await other.find(KEY)).key == KEY
    assert (await other.stat()).refused == {"leased": 3}
    assert (await one.fetch(KEY))[0] == make_state(KEY)


async def test_a_lease_ends_with_drop_and_close(
    server: Server, open_store: OpenStore
) -> None:
    """Dropping a state, or closing the store, lets others have the session at once."""
    one, other = await open_store("one"), await open_store("other")
    await one.park(make_state(KEY, b"one"))
    await one.drop(KEY)
    await other.park(make_state(KEY, b"other"))
    await other.aclose()
    assert (await one.fetch(KEY))[0].payloads == (b"other",)


async def test_who_was_overtaken_changes_nothing(
    server: Server, open_store: OpenStore
) -> None:
    """Once another has the session, its former owner's parks are refused."""
    one, other = await open_store("one"), await open_store("other")
    await one.park(make_state(KEY, b"before"))
    first_token = token_in(server)
    run_out(server)
    assert (await other.fetch(KEY))[0].payloads == (b"before",)
    assert token_in(server) > first_token
    with pytest.raises(StateLeased):
        await one.park(make_state(KEY, b"late"))
    await other.park(make_state(KEY, b"after"))
    assert (await other.fetch(KEY))[0].payloads == (b"after",)


async def test_a_stale_owner_is_refused_when_nobody_holds_the_lease(
    server: Server, open_store: OpenStore
) -> None:
    """A lease that ran out doesn't help its owner after another's park."""
    one, other = await open_store("one"), await open_store("other")
    await one.park(make_rows(KEY, [1]))
    run_out(server)
    await other.park(make_rows(KEY, [2]))
    run_out(server)
    with pytest.raises(StateLeased):
        await one.park(make_rows(KEY, [1, 2], 1))
    assert (await other.fetch(KEY))[0] == make_rows(KEY, [2])


async def test_a_lease_that_ran_out_unnoticed_is_no_loss(
    server: Server, open_store: OpenStore
) -> None:
    """If nobody took the session meanwhile, its owner goes on, with a later token."""
    one = await open_store("one")
    await one.park(make_rows(KEY, [1]))
    first_token = token_in(server)
    run_out(server)
    await one.park(make_rows(KEY, [1, 2], 1))
    assert token_in(server) > first_token
    assert (await one.fetch(KEY))[0].manifest.token_count == 2


async def test_of_two_who_race_one_wins(server: Server, open_store: OpenStore) -> None:
    """Of several who park at once one does; the state is the winner's."""
    stores = [await open_store(f"owner {number}") for number in range(4)]
    for round_number in range(10):
        key = f"t/{round_number}"
        results = await asyncio.gather(
            *(
                store.park(make_state(key, str(number).encode() * 50_000))
                for number, store in enumerate(stores)
            ),
            return_exceptions=True,
        )
        winners = [n for n, result in enumerate(results) if not is_refusal(result)]
        assert len(winners) == 1
        fetched, _ = await stores[winners[0]].fetch(key)
        assert fetched.payloads == (str(winners[0]).encode() * 50_000,)


def is_refusal(result: object) -> bool:
    """Return whether it is one; whatever else went wrong is raised."""
    if isinstance(result, BaseException) and not isinstance(result, StateLeased):
        raise result
    return isinstance(result, StateLeased)


async def test_leases_are_renewed(server: Server, open_store: OpenStore) -> None:
    """A lease outlives its time for as long as the store is open."""
    one, other = await open_store("one", lease_s=0.6), await open_store("other")
    await one.park(make_state(KEY))
    end_s = asyncio.get_running_loop().time() + 1.0
    while asyncio.get_running_loop().time() < end_s:
        with pytest.raises(StateLeased):
            await other.fetch(KEY)


async def test_the_owner_hears_of_a_state_that_is_gone(
    server: Server, open_store: OpenStore
) -> None:
    """Whatever takes the manifest away, the next renewal finds it gone."""
    store, listener = await open_store("one", lease_s=0.3), Listener()
    store.serve(listener)
    await store.park(make_state(KEY))
    server.ask("DEL", SESSION.manifest)
    async with asyncio.timeout(5):
        await listener.heard.wait()
    assert listener.lost_keys == [KEY]
    assert (await store.stat()).states == 0


async def test_the_owner_hears_of_a_session_taken_over(
    server: Server, open_store: OpenStore
) -> None:
    """When another owns the session, its state is none of ours any more."""
    one, listener = await open_store("one", lease_s=0.9), Listener()
    other = await open_store("other")
    one.serve(listener)
    await one.park(make_state(KEY))
    run_out(server)
    await other.fetch(KEY)
    async with asyncio.timeout(5):
        await listener.heard.wait()
    assert listener.lost_keys == [KEY]
    await other.fetch(KEY)


async def test_looking_takes_no_lease(server: Server, open_store: OpenStore) -> None:
    """Opened without leases, a store shows what another owns and leaves it to them."""
    one, looker = await open_store("one"), await open_store("looker", leases=False)
    await one.park(make_state(KEY))
    assert (await looker.fetch(KEY))[0] == make_state(KEY)
    await one.park(make_state(KEY, b"again"))
    assert (await looker.fetch(KEY))[0].payloads == (b"again",)
    with pytest.raises(StateLeased):
        await looker.drop(KEY)


async def test_a_failed_park_leaves_no_lease(
    server: Server, open_store: OpenStore
) -> None:
    """A continuation of nothing takes the session from nobody."""
    one, other = await open_store("one"), await open_store("other")
    with pytest.raises(StateMissing):
        await one.park(make_rows(KEY, [1, 2], 1))
    await other.park(make_state(KEY))
