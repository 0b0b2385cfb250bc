"""Relays and Redis are killed at random; each request has exactly one response or one error."""

from __future__ import annotations

import functools
import json
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import redis

from sbus_services.relay.redis import names
from tests.support.relays import Host, answer_to, data_of, pair, request, require_redis, wait_for

FIRST, SECOND = 1001, 1002

REQUESTS = int(os.environ.get("SBUS_STORM_REQUESTS", "300"))
"""Number of requests during the kills; make storm sends 10,000."""


class Application(threading.Thread):
    """Serves ``x`` of a host. It moves requests to a list of its own, so that none is lost if its Redis is killed."""

    def __init__(self, host: Host) -> None:
        super().__init__(daemon=True)
        self.host = host
        self.ended = threading.Event()

    def run(self) -> None:
        """Serve until ``ended`` is set."""
        client = self.host.server.client()
        while not self.ended.is_set():
            try:
                raw = client.lindex("application", 0) or client.blmove("msgbus.x", "application", 1, "LEFT", "RIGHT")
                if raw:
                    asked = json.loads(raw)
                    with client.pipeline(transaction=True) as change:
                        change.rpush(asked["ret"], json.dumps(answer_to(asked, data_of(asked))))
                        change.lrem("application", 1, raw)
                        change.execute()
            except redis.RedisError:
                time.sleep(0.01)


PUSH_ONCE = "if redis.call('SET', KEYS[1], 1, 'NX') then redis.call('RPUSH', 'msgbus.system.local', ARGV[1]) end return 1"


def push(host: Host, message: dict[str, Any]) -> None:
    """Push *message* once, however often Redis is killed meanwhile."""

    def pushed() -> bool:
        try:
            with host.server.client() as client:
                return bool(client.eval(PUSH_ONCE, 1, f"pushed:{message['ret']}", json.dumps(message)))
        except redis.RedisError:
            return False

    wait_for(pushed, "a Redis that takes a request")


def kill_something(chance: random.Random, hosts: list[Host]) -> None:
    """Kill a relay or a Redis, and start it again soon."""
    host = chance.choice(hosts)
    if chance.random() < 0.5:
        host.relay.kill()
        time.sleep(chance.random() / 4)
        host.relay.start()
    else:
        host.server.kill()
        time.sleep(chance.random() / 4)
        host.server.start()


def storm(folder: Path, requests: int, kills: int, seed: int) -> None:
    """Send *requests* between two hosts during *kills*; check that each has one response or one error."""
    hosts = pair(folder, FIRST, SECOND, settings='request_timeout = "1s"\nbacklog_messages = 100000\nqueue_messages = 100000\n')
    applications = [Application(host) for host in hosts]
    chance = random.Random(seed)
    try:
        for application in applications:
            application.start()
        sent: dict[str, tuple[Host, int, bytes]] = {}
        done = 0
        for number in range(requests):
            host = hosts[number % 2]
            message = request("x", chance.choice((FIRST, SECOND)), dat=str(number).encode(), exp=900, try_=1000)
            sent[message["ret"]] = (host, message["dst"][0], str(number).encode())
            push(host, message)
            while done * requests < number * kills:
                kill_something(chance, hosts)
                done += 1
        for ret, (host, twin, data) in sent.items():
            check(host, ret, twin, data)
        for host in hosts:
            wait_for(functools.partial(is_idle, host), "the end of all")
        for ret, (host, _, _) in sent.items():
            assert host.redis.exists(ret) == 0, "a second answer"
        assert sum(host.counters().get("requests-answered", 0) for host in hosts) == requests
        for host in hosts:
            host.assert_empty()
    finally:
        for application in applications:
            application.ended.set()
        for application in applications:
            application.join(30)
        for host in hosts:
            host.close()
            assert "internal error" not in host.relay.log()


def is_idle(host: Host) -> bool:
    """Return whether *host* has no messages in progress."""
    return not host.redis.exists(names.BACKLOG, names.TWINS, names.REPLY, names.REMOTE)


def check(host: Host, ret: str, twin: int, data: bytes) -> None:
    """Check the response in *ret*."""
    answer = host.receive(ret, 60)
    assert answer["src"] == twin
    assert answer["err"] == ""
    assert data_of(answer) == data


def test_a_storm_of_kills(folder: Path) -> None:
    require_redis()
    storm(folder, REQUESTS, min(60, REQUESTS // 25), seed=1)
