"""The key under which a state is parked: whose it is, and of which session.

A key is ``tenant/session``, the tenant percent-encoded: no choice of names makes the
key of one tenant that of another. Of no tenant, it is the session's id, behind a slash
if that has one itself.

    >>> key = state_key("acme/eu", "s1")
    >>> key, tenant_of(key), session_of(key)
    ('acme%2Feu/s1', 'acme/eu', 's1')
    >>> state_key("", "s1"), state_key("", "acme/s1"), tenant_of("/acme/s1")
    ('s1', '/acme/s1', '')
"""

from urllib.parse import quote, unquote


def state_key(tenant: str, session: str) -> str:
    """Return the key of a session's state."""
    if not tenant and "/" not in session:
        return session
    return f"{quote(tenant, safe='')}/{session}"


def tenant_of(key: str) -> str:
    """Return whose state it is; only states of one tenant share anything."""
    tenant, slash, _ = key.partition("/")
    return unquote(tenant) if slash else ""


def session_of(key: str) -> str:
    """Return the session that the state is of."""
    _, slash, session = key.partition("/")
    return session if slash else key
