"""Parked state in Redis or Valkey: alone, behind Sentinel, or a cluster.

``store.py`` is what others see, ``depot.py`` how a state goes in and comes out, over
``server.py`` (commands) and ``lanes.py`` (bytes); ``layout.py`` names the keys, and
``scripts.py`` is what happens atomically on the server. ``leases.py`` and ``held.py``
know whose a session is, ``health.py`` and ``breaker.py`` when to leave the server
alone, ``faults.py`` what went wrong. ``address.py`` and ``setup.py`` come first,
``sweep.py`` last.

Importing this package imports redis-py, so nothing outside of it does so early.
"""

from .store import RedisStore

__all__ = ["RedisStore"]
