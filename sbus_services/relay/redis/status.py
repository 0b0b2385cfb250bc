"""The status of calls between hosts, read from Redis alone, so that it is available without a running relay."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import redis

from sbus_services.relay.redis import names
from sbus_services.relay.redis.client import QUESTION, durability_problem, redis_url, unavailable

TIMEOUT_SECONDS = 5.0
"""Timeout of a command, for interactive use."""

Status = dict[str, Any]


def read_status(spelling: str) -> Status:
    """Return ``queues``, the number of running ``relays``, ``peers`` by host number, ``counters``, and ``durability``.

    ``durability`` is the reason why a crash of Redis can lose messages, empty if it cannot, None if Redis does not disclose its settings.

    Raises:
        InvalidRedisError: *spelling* is invalid.
        RedisUnavailableError: Redis does not respond.
    """
    url = redis_url(spelling)
    try:
        with redis.Redis.from_url(url, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS) as client:
            return _status(client)
    except (redis.RedisError, OSError) as error:
        raise unavailable(error, f"Redis at {spelling}") from None


def _status(client: Any) -> Status:
    """Return the status, by *client*, which redis-py does not type."""
    seconds, micros = client.time()
    now = seconds + micros / 1e6
    twins = sorted({int(each) for name in (names.TWINS, names.PEERS) for each in client.smembers(name)})
    peers = {str(twin): _peer(client, twin, now) for twin in twins}
    relays = [each.decode() for each in client.smembers(names.RELAYS)]
    return {
        "queues": {
            **{queue.rpartition(".")[2]: client.llen(queue) for queue in names.QUEUES},
            "taken": sum(client.llen(names.taken(relay, queue)) for relay in relays for queue in names.QUEUES),
            "served": sum(client.llen(names.taken(relay, names.BUS)) for relay in relays),
            "backlog": client.hlen(names.BACKLOG),
            "backlog_oldest_seconds": _oldest(client, now),
            "waiting": sum(peer["waiting"] for peer in peers.values()),
            "sending": sum(peer["sending"] for peer in peers.values()),
            "refused": client.llen(names.REFUSED),
        },
        "relays": sum(bool(client.exists(names.lease(relay))) for relay in relays),
        "durability": _durability(client),
        "peers": peers,
        "counters": {name.decode(): int(value) for name, value in sorted(client.hgetall(names.COUNTERS).items())},
    }


def _durability(client: Any) -> str | None:
    """Return ``durability``."""
    try:
        return durability_problem(client.execute_command(*QUESTION))
    except redis.ResponseError:
        return None


def _peer(client: Any, twin: int, now: float) -> Status:
    """Return the status of one host."""
    known = {name.decode(): value.decode("utf-8", "replace") for name, value in client.hgetall(names.peer(twin)).items()}
    first = client.zrange(names.waiting(twin), 0, 0, withscores=True)
    return {
        "waiting": client.zcard(names.waiting(twin)),
        "sending": client.zcard(names.sending(twin)),
        "next_try_seconds": max(0.0, round(first[0][1] - now, 3)) if first else None,
        "reached_seconds_ago": _ago(known, "reached", now),
        "failed_seconds_ago": _ago(known, "failed", now),
        "failures": int(known.get("failing", "0")),
        "reason": known.get("reason", "") if known.get("failing", "0") != "0" else "",
    }


def _ago(known: Mapping[str, str], name: str, now: float) -> float | None:
    """Return how many seconds ago *name* was set, None if never."""
    return max(0.0, round(now - float(known[name]), 3)) if name in known else None


def _oldest(client: Any, now: float) -> float | None:
    """Return the age in seconds of the request that expires first, None if none waits."""
    first = client.zrange(names.DEADLINES, 0, 0)
    body = client.hget(names.BACKLOG, first[0]) if first else None
    return max(0.0, round(now - json.loads(body)["now"], 3)) if body else None
