"""The relay's client of Redis: atomic scripts by name, and one error for an unavailable Redis."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from sbus.protocol.errors import SbusError

_NEEDED = {"appendonly": "yes", "appendfsync": "always"}

QUESTION = ("CONFIG GET", *_NEEDED)
"""The command, with its name as redis-py has it, whose result :func:`durability_problem` takes. A restricted user may not send it."""


def durability_problem(settings: Mapping[str, str]) -> str:
    """Return what must be changed so that a crash loses no confirmed message; empty if nothing.

    *settings* is the result of ``QUESTION``. A missing setting counts as wrong.
    """
    wrong = {name: settings.get(name, "unknown") for name, value in _NEEDED.items() if settings.get(name) != value}
    return ", ".join(f"{name} is {value}, set it to {_NEEDED[name]}" for name, value in wrong.items())


CONNECTIONS = 32
"""Maximum number of connections. More would only queue, because Redis runs one script at a time."""

TIMEOUT_SECONDS = 10.0
"""Timeout of a command. The longest pause of Redis itself, a fork with gigabytes of memory, takes one second."""

Argument = str | bytes | int | float


class RedisUnavailableError(SbusError, ConnectionError):
    """Redis did not respond, or rejected the command. Whether it ran is unknown: every script may be repeated."""


class UnsuitableRedisError(SbusError, ValueError):
    """A server that can never serve the relay: a retry would not help."""


class InvalidRedisError(SbusError, ValueError):
    """An invalid ``redis`` setting."""


def redis_url(spelling: str) -> str:
    """Return the URL for ``HOST:PORT``, ``HOST``, the path of a socket, or a URL.

    Raises:
        InvalidRedisError: *spelling* is none of them.
    """
    if "://" in spelling:
        if spelling.split("://", maxsplit=1)[0] in {"redis", "rediss", "unix"} and _is_resolvable(spelling):
            return spelling
    elif spelling.startswith("/"):
        return f"unix://{spelling}"
    else:
        host, colon, port = spelling.rpartition(":") if not spelling.endswith("]") else (spelling, "", "")
        if not colon:
            host, port = spelling, "6379"
        url = f"redis://{host}:{port}"
        is_port = port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65_536
        if host and is_port and not set(host) & set("/@? ") and _is_resolvable(url):
            return url
    raise InvalidRedisError(f'redis = "{spelling}": not HOST:PORT, a socket path or a URL such as redis://127.0.0.1:6379/0')


def _is_resolvable(url: str) -> bool:
    """Return whether the host in *url* can be asked for: the resolver raises an error of Python for others."""
    try:
        (urlsplit(url).hostname or "").encode("idna")
    except ValueError:
        return False
    return True


class RedisClient:
    """Connections to one Redis. Close it at the end."""

    def __init__(self, spelling: str) -> None:
        """Create it without connecting. Raises InvalidRedisError."""
        url = redis_url(spelling)
        # redis-py must not repeat a failed command: taking twice would leave one message behind.
        try:
            pool = BlockingConnectionPool.from_url(
                url,
                max_connections=CONNECTIONS,
                timeout=TIMEOUT_SECONDS,
                socket_timeout=TIMEOUT_SECONDS,
                socket_connect_timeout=TIMEOUT_SECONDS,
                retry=Retry(NoBackoff(), 0),
            )
        except ValueError as error:
            raise InvalidRedisError(f'redis = "{spelling}": {error}') from None
        self._redis = Redis(connection_pool=pool)
        # redis-py has no type for this method.
        self._execute: Callable[..., Awaitable[Any]] = self._redis.execute_command
        self._stopped = False
        prelude = _source("prelude")
        self._scripts = {name: prelude + _source(name) for name in SCRIPTS}
        self._digests = {name: hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest() for name, text in self._scripts.items()}

    async def command(self, *words: Argument) -> Any:
        """Run one command and return its result. Raises RedisUnavailableError."""
        self._check()
        try:
            return await self._execute(*words)
        except (RedisError, OSError, TimeoutError) as error:
            raise unavailable(error) from None

    async def script(self, name: str, *arguments: Argument) -> Any:
        """Run the script *name* and return its result. Raises RedisUnavailableError."""
        self._check()
        try:
            try:
                return await self._execute("EVALSHA", self._digests[name], 0, *arguments)
            except NoScriptError:
                self._check()
                return await self._execute("EVAL", self._scripts[name], 0, *arguments)
        except (RedisError, OSError, TimeoutError) as error:
            raise unavailable(error) from None

    def stop(self) -> None:
        """From now on cancel every caller.

        This ends loops around Redis reliably: before Python 3.12 asyncio.wait_for() may swallow a cancellation.
        """
        self._stopped = True

    async def close(self) -> None:
        """Close all connections."""
        await self._redis.aclose()
        await self._redis.connection_pool.disconnect()

    def _check(self) -> None:
        """Cancel the caller after :meth:`stop`."""
        if self._stopped:
            raise asyncio.CancelledError


SCRIPTS = (
    "accept",
    "admit",
    "answer",
    "asker",
    "claim",
    "deliver",
    "discard",
    "dispatch",
    "drop",
    "engage",
    "expired",
    "hasten",
    "live",
    "postpone",
    "respond",
    "sent",
    "take",
)
"""Files in ``scripts/``: each is one state transition of a message."""


_CONNECTING = re.compile(r"Error (?P<number>\S+) connecting to (?P<place>\S+)\. (?P<reason>.+)")
"""The text of redis-py for a failed connection."""


OLDEST = (7, 0)
"""The oldest version of Redis with the commands of the scripts. Valkey reports such a version too."""

UNDECLARED = ("non local key", "undeclared key")
"""Texts of servers that demand that a script declares its keys: Redis in cluster mode, Dragonfly."""


def check_server(info: Mapping[str, object]) -> None:
    """Raise UnsuitableRedisError if the server cannot serve the relay; *info* is the result of INFO."""
    if info.get("redis_mode") == "cluster":
        raise UnsuitableRedisError("Redis is in cluster mode, which has no transactions over all keys; use a Redis with cluster-enabled no")
    version = str(info.get("redis_version", ""))
    if (found := re.match(r"(\d+)\.(\d+)", version)) and (int(found[1]), int(found[2])) < OLDEST:
        raise UnsuitableRedisError(f"Redis {version} is too old: install 7.0 or later")


def unavailable(error: Exception, redis: str = "Redis") -> RedisUnavailableError:
    """Return the error for *redis* that cannot be used, with what to do.

    redis-py ends some texts with a full stop, and some errors have no text.

    Raises:
        UnsuitableRedisError: it can never be used.
    """
    if any(text in str(error) for text in UNDECLARED):
        raise UnsuitableRedisError(f"{redis} refuses scripts that compute the names of their keys: {str(error)[:200]}; use Redis or Valkey")
    return RedisUnavailableError(_reason(error, redis))


def _reason(error: Exception, redis: str) -> str:
    """Return the text of :func:`unavailable`."""
    words = f"{redis}: {str(error).rstrip('.') or type(error).__name__}"
    if found := _CONNECTING.fullmatch(str(error).rstrip(".")):
        # The text of asyncio for connect(2) repeats the address instead of the reason.
        why = os.strerror(int(found["number"])) if found["reason"].startswith("Connect call failed") else found["reason"]
        words = f"cannot connect to Redis at {found['place']}: {why[0].lower() if why[1:2].islower() else why[0]}{why[1:]}"
    cause = error.__cause__ or error.__context__
    if isinstance(cause, PermissionError):
        return f"{words}; only root and the relay's user can use the relay's Redis: use sudo, or see sbus-relay(8)"
    if isinstance(cause, FileNotFoundError):
        return f"{words}; start Redis (package redis-server) with: systemctl start redis-server@sbus-relay.service"
    if isinstance(cause, ConnectionRefusedError | ConnectionResetError) or "Connection closed" in words:
        return f"{words}; Redis ends if its disk is full, see: journalctl -u redis-server@sbus-relay.service"
    return words


def _source(name: str) -> str:
    """Return the text of one script."""
    return files("sbus_services.relay.redis").joinpath("scripts", f"{name}.lua").read_text("utf-8")
