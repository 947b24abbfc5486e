"""What a user writes becomes the store that it says, or one sentence."""

import base64
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from kvalet.state_store import (
    DiskStore,
    Inventory,
    MemoryStore,
    StateMissing,
    StoreUnusable,
)
from kvalet.state_store.open import open_store, open_tier, read_sealer
from kvalet.state_store.redis import RedisStore
from kvalet.state_store.redis.address import read_address
from kvalet.state_store.setting import (
    REDIS_SCHEMES,
    DiskTier,
    MemoryTier,
    RedisTier,
    StoreSetting,
    read_setting,
)
from kvalet.state_store.sizes import parse_seconds, parse_size
from kvalet.state_store.tiered import TieredStore

from ..servers import any_program, serve, shared_server
from .states import make_rows, make_state

KEYS = {"KVALET_STORE_KEYS": "a:" + base64.b64encode(bytes(32)).decode()}
LAZY = """
import asyncio, sys
from kvalet.state_store.open import open_store
asyncio.run(open_store("memory:1MiB", environment={}))
assert not {"redis", "cryptography"} & set(sys.modules), "imported too early"
"""


@asynccontextmanager
async def opened(
    text: str, environment: dict[str, str] | None = None
) -> AsyncGenerator[Inventory]:
    """Open a store and close it."""
    store = await open_store(text, environment=environment or {})
    try:
        yield store
    finally:
        await store.aclose()


@pytest.fixture
def redis_url() -> Iterator[str]:
    """A Redis with a prefix of the test's own."""
    yield f"{shared_server().url}?prefix=open-{uuid4().hex[:8]}"


# ---- reading -------------------------------------------------------------------------

MEMORY = MemoryTier(budget_bytes=None, tenant_budget_bytes=None)


@pytest.mark.parametrize(
    ("text", "tiers"),
    [
        ("memory", [MEMORY]),
        (
            "memory:512MiB",
            [MemoryTier(budget_bytes=2**29, tenant_budget_bytes=None)],
        ),
        (
            "memory:1GiB?tenant_budget=100MB",
            [MemoryTier(budget_bytes=2**30, tenant_budget_bytes=10**8)],
        ),
        (
            "disk:/a/b,c?budget=10GiB",
            [
                DiskTier(
                    folder=Path("/a/b,c"),
                    budget_bytes=10 * 2**30,
                    tenant_budget_bytes=None,
                )
            ],
        ),
        (
            "memory, disk:x",
            [
                MEMORY,
                DiskTier(
                    folder=Path("x"), budget_bytes=None, tenant_budget_bytes=None
                ),
            ],
        ),
        (
            "rediss://u:p%3Fw@h:1/2?ssl_ca_certs=/a%20b&ttl=12h&lease=10s"
            "&prefix=mine&connections=8&timeout=250ms",
            [
                RedisTier(
                    url="rediss://u:p%3Fw@h:1/2?ssl_ca_certs=/a%20b",
                    options={
                        "ttl_s": 43_200.0,
                        "lease_s": 10.0,
                        "prefix": "mine",
                        "connections": 8,
                        "command_timeout_s": 0.25,
                    },
                )
            ],
        ),
        (
            "memory,redis+sentinel://a:26379,b:26379,c/main?db=1,disk:x",
            [
                MEMORY,
                RedisTier(
                    url="redis+sentinel://a:26379,b:26379,c/main?db=1", options={}
                ),
                DiskTier(
                    folder=Path("x"), budget_bytes=None, tenant_budget_bytes=None
                ),
            ],
        ),
        ("unix:///run/r.sock?ttl=5", [
            RedisTier(url="unix:///run/r.sock", options={"ttl_s": 5.0})
        ]),
    ],
)  # fmt: skip
def test_what_a_text_says(
    text: str, tiers: list[MemoryTier | DiskTier | RedisTier]
) -> None:
    """Kinds, sizes, times, tiers; commas of hosts and paths are theirs."""
    assert read_setting(text) == StoreSetting(tiers=tuple(tiers))


def test_home() -> None:
    """A ~ in a disk store's path is the user's home, which a shell leaves alone."""
    [tier] = read_setting("disk:~/states").tiers
    assert isinstance(tier, DiskTier)
    assert tier.folder == Path.home() / "states"


@pytest.mark.parametrize(
    ("text", "through"),
    [("", False), ("?write=behind", False), ("?ttl=1h&write=through", True)],
)
def test_write_through(text: str, through: bool) -> None:
    """The last of several stores says whether a park waits for it."""
    setting = read_setting(f"memory,redis://h{text}")
    assert setting.write_through is through
    [_, tier] = setting.tiers
    assert isinstance(tier, RedisTier)
    assert tier.url == "redis://h"


def test_schemes_are_those_of_redis() -> None:
    """Whatever a Redis address may begin with can be opened, and nothing else."""
    for scheme in REDIS_SCHEMES:
        [tier] = read_setting(f"{scheme}://h/x").tiers
        assert isinstance(tier, RedisTier)
        path = "/1" if scheme in ("redis", "rediss") else "/x"
        path = "" if "cluster" in scheme else path
        assert read_address(f"{scheme}://h{path}").scheme == scheme
    with pytest.raises(StoreUnusable) as caught:
        read_address("other://h")
    assert f"one of {', '.join(REDIS_SCHEMES)} and" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", r"there is no store ''; valid are memory, memory:SIZE, disk:PATH, redis:"),
        ("attic", "there is no store 'attic'"),
        ("redis:h", "there is no store 'redis'; .* redis://"),
        ("http://u:secret@h", r"no store 'http'; .* redis\+cluster://…"),
        ("memory,http://u:secret@h", "no store 'http'"),
        ("memory:lots", "'lots' is no size such as 512MiB"),
        ("memory:0", "'0' is no size"),
        ("memory:0.1", r"'0\.1' is no size"),
        ("memory:1023KiB", "a budget of 1023KiB holds no state; give at least 1 MiB"),
        ("memory:1GiB?budget=2GiB", "its budget twice"),
        ("memory?colour=red", "no option 'colour'; valid are budget, tenant_budget"),
        ("memory?ttl=1h", "no option 'ttl'; valid are budget"),
        ("memory,memory", "memory can only be the first"),
        ("redis://h,memory", "memory can only be the first"),
        ("disk", "names its folder: disk:PATH"),
        ("disk:", "names its folder"),
        ("disk:x?budget=1kB", "give at least 1 MiB"),
        ("disk:x?budget=1GB&budget=2GB", r"\?budget= twice"),
        ("disk:~nobody-of-that-name/x", "no user has the folder"),
        ("redis://h?ttl=soon", "'soon' is no time such as 30s or 24h"),
        ("redis://h?ttl=0", "'0' is no time"),
        ("redis://h?connections=0", r"\?connections= is a number from 1 to 999"),
        ("redis://h?write=through", "goes with several stores"),
        ("memory,redis://h?write=later", "is behind or through, not 'later'"),
        ("memory?write=through,redis://h", "belongs to the last of several"),
        ("redis://h?write=through,disk:x", "belongs to the last of several"),
        ("redis://u:a?secret@h", "a password is written %3F"),
    ],
)
def test_a_wrong_text_is_a_sentence(text: str, sentence: str) -> None:
    """It says what is wrong and what there is; nothing of a password shows."""
    with pytest.raises(StoreUnusable, match=sentence) as caught:
        read_setting(text)
    assert "secret" not in str(caught.value)


def test_a_password_does_not_show() -> None:
    """Nor in the repr of what was read."""
    assert "secret" not in repr(read_setting("memory,redis://u:secret@h?ttl=1h"))


@pytest.mark.parametrize("text", ["", "x", "1 kilo", "-1", "1e9", "1.", ".5", "nan"])
def test_no_sizes_and_times(text: str) -> None:
    """What is no number with a unit is refused, whatever else floats may look like."""
    with pytest.raises(StoreUnusable):
        parse_size(text)
    with pytest.raises(StoreUnusable):
        parse_seconds(text)


# ---- opening -------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_memory() -> None:
    """Host memory, with its budget."""
    async with opened("memory:2MiB") as store:
        assert isinstance(store, MemoryStore)
        assert (await store.stat()).budget_bytes == 2**21


@pytest.mark.asyncio
async def test_disk(tmp_path: Path) -> None:
    """A folder, with its budget; what is parked there is there the next time."""
    text = f"disk:{tmp_path}/states?budget=2MiB"
    async with opened(text) as store:
        assert isinstance(store, DiskStore)
        assert (await store.stat()).budget_bytes == 2**21
        await store.park(make_rows("t/s", range(200)))
    async with opened(text) as store:
        assert (await store.fetch("t/s"))[0] == make_rows("t/s", range(200))


@pytest.mark.asyncio
async def test_redis(redis_url: str) -> None:
    """A real server, by URL; our options do not reach it."""
    async with opened(f"{redis_url}&ttl=60s&lease=5s&connections=2") as store:
        assert isinstance(store, RedisStore)
        await store.park(make_rows("t/s", range(200)))
        assert (await store.fetch("t/s"))[0] == make_rows("t/s", range(200))
        await store.drop("t/s")


@pytest.mark.asyncio
@pytest.mark.parametrize("write", ["behind", "through"])
async def test_tiers(tmp_path: Path, redis_url: str, write: str) -> None:
    """Memory, a folder and a server as one store; the slowest has the state."""
    text = f"memory:1GiB,disk:{tmp_path}/d,{redis_url}"
    async with opened(f"{text}&write={write}") as store:
        assert isinstance(store, TieredStore)
        await store.park(make_rows("t/s", range(200)))
        stat = await store.stat()
        assert [tier.tier for tier in stat.tiers] == ["host", "disk", "redis"]
    async with opened(redis_url) as store:
        assert (await store.fetch("t/s"))[0] == make_rows("t/s", range(200))
        await store.drop("t/s")


@pytest.mark.asyncio
async def test_encrypted(tmp_path: Path) -> None:
    """With keys in the environment what is on disk can't be read without them."""
    text = f"disk:{tmp_path}/states"
    async with opened(text, KEYS) as store:
        await store.park(make_rows("the tenant/s", range(200)))
    payload = make_rows("the tenant/s", range(200)).payloads[0]
    for path in filter(Path.is_file, tmp_path.rglob("*")):
        content = path.read_bytes()
        assert b"the tenant" not in content
        assert bytes(payload[:64]) not in content
    with pytest.raises(StoreUnusable, match="other keys"):
        await open_store(text, environment={})
    async with opened(text, KEYS) as store:
        assert (await store.fetch("the tenant/s"))[0].payloads[0] == payload


@pytest.mark.asyncio
async def test_encrypted_redis(redis_url: str) -> None:
    """States of several chunks come back; without the keys they are not there."""
    state = make_state("t/s", os.urandom(5 << 20))
    async with opened(redis_url, KEYS) as store:
        await store.park(state)
    async with opened(redis_url) as store:
        with pytest.raises(StateMissing):
            await store.find("t/s")
    async with opened(redis_url, KEYS) as store:
        assert (await store.fetch("t/s"))[0] == state
        await store.drop("t/s")


@pytest.mark.asyncio
async def test_wrong_keys(tmp_path: Path) -> None:
    """A key of the wrong length is one sentence, and no folder is made."""
    keys = {"KVALET_STORE_KEYS": "a:" + base64.b64encode(bytes(16)).decode()}
    with pytest.raises(StoreUnusable, match="16 bytes; AES-256 takes 32"):
        await open_store(f"disk:{tmp_path}/states", environment=keys)
    assert not os.listdir(tmp_path)


@pytest.mark.asyncio
async def test_a_failure_leaves_nothing_open(tmp_path: Path) -> None:
    """Where a later tier can't be opened, the earlier ones are let go of."""
    folder = f"disk:{tmp_path}/states"
    with pytest.raises(StoreUnusable, match="nobody answers"):
        await open_store(f"{folder},redis://127.0.0.1:1", environment={})
    async with opened(folder):
        with pytest.raises(StoreUnusable, match="in use by another store"):
            await open_store(f"memory,{folder}", environment={})


@pytest.mark.asyncio
async def test_an_unknown_redis_option() -> None:
    """All that there are are named: ours, and those of the URL."""
    with pytest.raises(StoreUnusable, match=r"no option 'colour'; .*ttl.*ssl_ca_certs"):
        await open_store("redis://u:secret@127.0.0.1:1?colour=1", environment={})


@pytest.mark.asyncio
async def test_what_the_user_should_know() -> None:
    """An eviction policy that drops state silently is said, and the store works."""
    said: list[str] = []
    with serve(any_program(), "--maxmemory-policy", "allkeys-lru") as server:
        store = await open_store(
            f"memory,{server.url}", environment={}, say=said.append
        )
        await store.aclose()
    [sentence] = said
    assert "maxmemory-policy allkeys-lru" in sentence


def test_nothing_is_imported_early() -> None:
    """A memory store needs neither redis nor cryptography."""
    subprocess.run([sys.executable, "-W", "error", "-c", LAZY], check=True)


# ---- looking -------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_looking_makes_no_folder(tmp_path: Path) -> None:
    """Who looks at a folder that isn't there is told so."""
    [tier] = read_setting(f"disk:{tmp_path}/states").tiers
    with pytest.raises(StoreUnusable, match="there is no folder"):
        await open_tier(tier, sealer=read_sealer({}), looking=True)
    assert not os.listdir(tmp_path)


@pytest.mark.asyncio
async def test_looking_takes_no_session(redis_url: str) -> None:
    """Who looks reads another's state, who goes on owning it."""
    [tier] = read_setting(redis_url).tiers
    async with opened(redis_url) as owner:
        state = make_rows("t/s", range(200))
        await owner.park(state)
        looker = await open_tier(tier, sealer=read_sealer({}), looking=True)
        assert (await looker.fetch("t/s"))[0] == state
        keys = aiter(looker.keys())
        assert await anext(keys) == "t/s"
        await looker.aclose()
        await owner.park(make_rows("t/s", range(300), 200))
        await owner.drop("t/s")
        with pytest.raises(StateMissing):
            await owner.find("t/s")
