"""The Redis client: it loads missing scripts, has one kind of error, and does nothing after its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError

from sbus_services.relay.redis.client import (
    QUESTION,
    SCRIPTS,
    InvalidRedisError,
    RedisClient,
    RedisUnavailableError,
    UnsuitableRedisError,
    check_server,
    durability_problem,
    redis_url,
    unavailable,
)


class Redis:
    """A Redis without scripts until they are sent in full."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.asked: Callable[[], object] = lambda: None
        """Called while a command runs."""
        self._known: set[str] = set()

    async def execute(self, *words: Any) -> str:
        """Run one command."""
        self.commands.append(words[0])
        self.asked()
        if words[0] == "EVALSHA" and words[1] not in self._known:
            self._known.add(words[1])
            raise NoScriptError("NOSCRIPT No matching script. Please use EVAL.")
        return "said"


def link_to(execute: Any) -> RedisClient:
    """Return a client whose commands *execute* runs."""
    link = RedisClient("/nonexistent/redis.sock")
    link._execute = execute
    return link


def test_a_script_is_sent_whole_once() -> None:
    redis = Redis()
    link = link_to(redis.execute)

    async def run() -> None:
        assert [await link.script("live"), await link.script("live")] == ["said", "said"]

    asyncio.run(run())
    assert redis.commands == ["EVALSHA", "EVAL", "EVALSHA"]


def test_a_relay_that_ends_while_a_script_is_missing_sends_nothing_more() -> None:
    """Before Python 3.12 asyncio.wait_for(), which redis-py uses, may swallow the cancellation, so the client checks."""
    redis = Redis()
    link = link_to(redis.execute)
    redis.asked = link.stop

    async def run() -> None:
        with pytest.raises(asyncio.CancelledError):
            await link.script("live")

    asyncio.run(run())
    assert redis.commands == ["EVALSHA"]


@pytest.mark.parametrize("ask", [lambda link: link.script("live"), lambda link: link.command("PING")], ids=["script", "command"])
def test_after_the_end_nothing_is_asked(ask: Callable[[RedisClient], Any]) -> None:
    redis = Redis()
    link = link_to(redis.execute)
    link.stop()

    async def run() -> None:
        with pytest.raises(asyncio.CancelledError):
            await ask(link)

    asyncio.run(run())
    assert redis.commands == []


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ReadOnlyError("READONLY No writes"), "READONLY"),
        (ConnectionResetError("reset by peer."), "reset by peer$"),
        (TimeoutError(), "Timeout"),
    ],
)
def test_whatever_keeps_redis_away_is_one_kind_of_error(error: Exception, says: str) -> None:
    async def fail(*_words: Any) -> None:
        raise error

    async def run() -> None:
        for ask in (link.script("live"), link.command("PING")):
            with pytest.raises(RedisUnavailableError, match=f"Redis: .*{says}"):
                await ask

    link = link_to(fail)
    asyncio.run(run())


def test_socket_without_a_server() -> None:
    async def run() -> None:
        link = RedisClient("/nonexistent/redis.sock")
        with pytest.raises(RedisUnavailableError) as caught:
            await link.command("PING")
        await link.close()
        assert str(caught.value) == (
            "cannot connect to Redis at /nonexistent/redis.sock: no such file or directory; "
            "start Redis (package redis-server) with: systemctl start redis-server@sbus-relay.service"
        )

    asyncio.run(run())


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("Error 111 connecting to h:9. Connection refused.", "cannot connect to Redis at h:9: connection refused"),
        ("Error 111 connecting to h:9. Connect call failed ('1.2.3.4', 9).", "cannot connect to Redis at h:9: connection refused"),
        ("Error -2 connecting to h:6379. Name or service not known.", "cannot connect to Redis at h:6379: name or service not known"),
        ("Error 1 connecting to h:9. [SSL: BAD] wrong.", "cannot connect to Redis at h:9: [SSL: BAD] wrong"),
        ("Timeout reading from h:9", "Redis at x: Timeout reading from h:9"),
    ],
)
def test_errors_of_redis_are_in_words(words: str, text: str) -> None:
    assert str(unavailable(RedisError(words), "Redis at x")) == text


def test_every_script_is_in_the_list_and_no_other() -> None:
    from sbus_services.relay.redis import client as redis_client

    folder = Path(redis_client.__file__).with_name("scripts")
    assert sorted(file.stem for file in folder.glob("*.lua")) == sorted((*SCRIPTS, "prelude"))


@pytest.mark.parametrize(
    ("spelling", "url"),
    [
        ("localhost", "redis://localhost:6379"),
        ("10.0.0.1:7000", "redis://10.0.0.1:7000"),
        ("[::1]", "redis://[::1]:6379"),
        ("[::1]:7000", "redis://[::1]:7000"),
        ("/run/redis.sock", "unix:///run/redis.sock"),
        ("rediss://user:word@h:1/2", "rediss://user:word@h:1/2"),
    ],
)
def test_spellings(spelling: str, url: str) -> None:
    assert redis_url(spelling) == url


@pytest.mark.parametrize(
    "spelling",
    ["", ":1", "h:0", "h:65536", "h:x", "http://h", "a b:1", "user@h:1", "\udcff", "h" * 64, "redis://" + "h" * 64, "h:" + "9" * 5_000],
)
def test_an_invalid_redis_address(spelling: str) -> None:
    with pytest.raises(InvalidRedisError):
        RedisClient(spelling)


@pytest.mark.parametrize(
    "info",
    [{"redis_version": "6.2.14"}, {"redis_version": "7.2.4", "redis_mode": "cluster"}],
    ids=["old", "cluster"],
)
def test_a_server_that_can_never_serve_is_refused(info: dict[str, str]) -> None:
    with pytest.raises(UnsuitableRedisError, match=r"7\.0 or later|cluster-enabled no"):
        check_server(info)


@pytest.mark.parametrize("info", [{"redis_version": "7.0.15", "redis_mode": "standalone"}, {"redis_version": "10.1"}, {}])
def test_other_servers_are_used(info: dict[str, str]) -> None:
    check_server(info)


@pytest.mark.parametrize(
    "words", ["Script attempted to access a non local key in a cluster node", "script tried accessing undeclared key, script: x"]
)
def test_a_server_that_demands_declared_keys_is_not_tried_again(words: str) -> None:
    with pytest.raises(UnsuitableRedisError, match="use Redis or Valkey"):
        unavailable(RedisError(words))


@pytest.mark.parametrize("cause", [ConnectionRefusedError(111, "refused"), ConnectionResetError(104, "reset")])
def test_the_error_of_a_server_that_went_away_names_a_full_disk(cause: OSError) -> None:
    error = RedisError("Error 111 connecting to /run/redis.sock. x")
    error.__cause__ = cause
    assert "ends if its disk is full" in str(unavailable(error))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"appendonly": "yes", "appendfsync": "always"}, ""),
        ({"appendonly": "no", "appendfsync": "always"}, "appendonly is no, set it to yes"),
        ({"appendonly": "yes", "appendfsync": "everysec"}, "appendfsync is everysec, set it to always"),
        ({}, "appendonly is unknown, set it to yes, appendfsync is unknown, set it to always"),
    ],
)
def test_it_names_each_setting_and_the_value_that_it_needs(settings: dict[str, str], problem: str) -> None:
    assert durability_problem(settings) == problem


def test_the_question_names_the_settings() -> None:
    assert QUESTION == ("CONFIG GET", "appendonly", "appendfsync")
