"""Redis URLs: what they say, what is wrong with them, what of them is shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvalet.state_store import StoreUnusable
from kvalet.state_store.redis.address import Shape, read_address


@pytest.mark.parametrize(
    ("url", "shape", "hosts"),
    [
        ("redis://", Shape.SERVER, (("localhost", 6379),)),
        ("redis://h:1/3", Shape.SERVER, (("h", 1),)),
        ("redis://[::1]:7", Shape.SERVER, (("::1", 7),)),
        ("rediss://h", Shape.SERVER, (("h", 6379),)),
        ("unix:///run/r.sock?db=3", Shape.SOCKET, ()),
        ("redis+sentinel://a,b:1/main?db=3", Shape.SENTINEL, (("a", 26379), ("b", 1))),
        ("rediss+cluster://u:p@a:1,b:2", Shape.CLUSTER, (("a", 1), ("b", 2))),
    ],
)
def test_urls_are_read(url: str, shape: Shape, hosts: tuple[tuple[str, int]]) -> None:
    """Each kind of URL says what stands behind it and where."""
    address = read_address(url)
    assert (address.shape, address.hosts) == (shape, hosts)
    assert (address.tls is not None) == url.startswith("rediss")
    assert address.db == (3 if "3" in url else 0)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://h", "begins with one of redis, rediss, unix"),
        ("localhost:6379", "begins with one of"),
        ("redis://h:port", "'h:port' in the Redis URL is no host:port"),
        ("redis://h:99999", "'h:99999' in the Redis URL is no host:port"),
        ("redis://h/one", "a number, not 'one'"),
        ("redis://h?timeout=3", "option 'timeout'; there are db, ssl_ca_certs"),
        ("unix://", "names the socket's path"),
        ("redis+sentinel://h", "names the service"),
        ("redis+cluster://h?db=1", "a Redis cluster has database 0 alone, not 1"),
        ("rediss://h?ssl_check_hostname=perhaps", "true or false, not 'perhaps'"),
    ],
)
def test_wrong_urls_get_a_sentence(url: str, words: str) -> None:
    """What is wrong is named, and what would be right."""
    with pytest.raises(StoreUnusable, match=words.replace("?", r"\?")):
        read_address(url)


@given(st.text(alphabet="abcXYZ019%_-.~", min_size=1).map(lambda text: f"§{text}§"))
def test_a_password_is_never_shown(password: str) -> None:
    """Neither the text of an address nor its repr has the password in it."""
    address = read_address(
        f"redis://user:{password}@h:1/2?sentinel_password={password}"
    )
    assert "§" not in str(address) + repr(address)
    assert str(address) == "redis://user:***@h:1/2"
