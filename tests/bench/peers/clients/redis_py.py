"""redis-py over a Unix socket, with hiredis, as its makers advise; plain, and with pipelines of 64."""

from __future__ import annotations

import time
from typing import Any

import redis

from tests.bench.peers.clients.run import END, END_SECONDS, Supply, Tally, Trips

KEY = "bench/load"


def _connect(address: str) -> Any:
    """Connect."""
    return redis.Redis(unix_socket_path=address)


def publish(address: str, supply: Supply) -> None:
    """Publish each message by itself: each is a round trip."""
    server = _connect(address)
    for payload in supply:
        server.publish(KEY, payload)
    _end(server, supply)


def publish_pipeline(address: str, supply: Supply) -> None:
    """Publish 64 with one round trip."""
    server = _connect(address)
    for group in supply.groups():
        pipeline = server.pipeline(transaction=False)
        for payload in group:
            pipeline.publish(KEY, payload)
        pipeline.execute()
    _end(server, supply)


def _end(server: Any, supply: Supply) -> None:
    """Say that this was all."""
    supply.finish()
    while True:
        server.publish(KEY, END)
        time.sleep(END_SECONDS)


def receive(address: str, tally: Tally) -> None:
    """Iterate; the first item says that the subscription is in force."""
    subscription = _connect(address).pubsub(ignore_subscribe_messages=False)
    subscription.subscribe(KEY)
    items = subscription.listen()
    next(items)
    tally.ready()
    for item in items:
        tally.take(item["data"])


def trip(address: str, trips: Trips) -> None:
    """From one connection to another."""
    server = _connect(address)
    subscription = _connect(address).pubsub()
    subscription.subscribe(KEY)
    items = subscription.listen()
    next(items)
    for payload in trips:
        server.publish(KEY, payload)
        next(items)
