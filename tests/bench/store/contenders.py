"""The client of each server. The libraries of the peers are imported only where a peer is measured."""

from __future__ import annotations

from tests.bench.store.clients.contract import Client

LOADING = "sbus-store, last=True"
"""The client of sbus-store whose subscribers load the last values themselves."""


def client_of(name: str) -> Client:
    """Return a new client of the server with the *name* in the table."""
    if name == "Redis":
        from tests.bench.store.clients.redis_streams import RedisStreams

        return RedisStreams()
    if name == "JetStream":
        from tests.bench.store.clients.jetstream import JetStream

        return JetStream()
    from tests.bench.store.clients.sbus_store import LoadingSbusStore, SbusStore

    return LoadingSbusStore() if name == LOADING else SbusStore()
