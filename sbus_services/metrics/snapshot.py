"""The state of a bus at one moment, as its control messages report it. No I/O. Spec: sbus-protocol(7) §6.

The number of requests is bounded: a user can have connections of many user ids, see subuid(5). So users above the chosen ones are not
listed; their part is the difference between the sum and the others.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sbus.bus_documents import BadResponseError, JsonObject, parse_document
from sbus.protocol import controls
from sbus.protocol.errors import SbusError
from sbus_programs.config.users import IsSubordinate, accounts_first, no_ids

Question = tuple[bytes, bytes | None]
"""The key of a control message, and its payload."""

_FEATURE = b"totals"

_MOST_PAGES = 600
"""A bus with more pages repeats them."""


class NotPermittedError(SbusError, PermissionError):
    """The bus does not show its counters to this user."""

    def __init__(self) -> None:
        super().__init__("only owners of the bus and users with the right stats can read the metrics; see sbus-metrics(8)")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The answers. Users are by id; ``other`` has the totals of users that the bus has forgotten."""

    stats: JsonObject
    users: Mapping[int, JsonObject] = field(default_factory=dict)
    """The chosen users that have a connection."""
    totals: Mapping[int, JsonObject] = field(default_factory=dict)
    other: JsonObject = field(default_factory=dict)
    chosen: frozenset[int] = frozenset()
    """The users with series of their own."""


class ControlClient(Protocol):
    """The part of a blocking bus that responds to control messages."""

    def control(self, key: bytes, payload: bytes | None = None) -> bytes:
        """Return the payload of the response to *key*."""


class AsyncControlClient(Protocol):
    """The same of an asynchronous bus."""

    async def control(self, key: bytes, payload: bytes | None = None) -> bytes:
        """Return the payload of the response to *key*."""


def ask(bus: ControlClient, max_users: int, is_subordinate: IsSubordinate = no_ids) -> Snapshot:
    """Return the state of *bus*, with at most *max_users* users of their own; those for which *is_subordinate* is true come last.

    Raises:
        NotPermittedError: this user may not read it.
        SbusError: the bus refused a request, or is gone.
    """
    asking = questions(max_users, is_subordinate)
    answer: bytes | None = None
    while True:
        try:
            key, payload = next(asking) if answer is None else asking.send(answer)
        except StopIteration as end:
            found: Snapshot = end.value
            return found
        answer = bus.control(key, payload)


async def ask_async(bus: AsyncControlClient, max_users: int, is_subordinate: IsSubordinate = no_ids) -> Snapshot:
    """The same as :func:`ask`."""
    asking = questions(max_users, is_subordinate)
    answer: bytes | None = None
    while True:
        try:
            key, payload = next(asking) if answer is None else asking.send(answer)
        except StopIteration as end:
            found: Snapshot = end.value
            return found
        answer = await bus.control(key, payload)


def questions(max_users: int, is_subordinate: IsSubordinate) -> Generator[Question, bytes, Snapshot]:
    """Yield each request, take the payload of its response, and return the snapshot.

    Raises:
        NotPermittedError: the responses are about one connection only.
        BadResponseError: a response violates the protocol.
    """
    features = yield controls.FEATURES, None
    stats = parse_document(controls.STATS, (yield controls.STATS, None))
    if stats.get("scope") != "bus":
        raise NotPermittedError
    if _FEATURE not in features.split(b"\n"):
        raise BadResponseError(controls.FEATURES, "this bus has no totals of users; restart it after an upgrade")
    totals, other = yield from _totals()
    chosen = frozenset(accounts_first(totals, is_subordinate)[:max_users])
    users = yield from _users(chosen)
    return Snapshot(stats, users, totals, other, chosen)


def _totals() -> Generator[Question, bytes, tuple[dict[int, JsonObject], JsonObject]]:
    """Return the totals by user, and those of forgotten users."""
    found: dict[int, JsonObject] = {}
    other: JsonObject = {}
    after: int | None = None
    for _ in range(_MOST_PAGES):
        page = parse_document(controls.TOTALS, (yield controls.TOTALS, _payload(after)))
        found.update(_by_uid(page))
        forgotten = page.get("other")
        other = forgotten if isinstance(forgotten, dict) else other
        after = _next(controls.TOTALS, page, after)
        if after is None:
            return found, other
    raise BadResponseError(controls.TOTALS, "too many pages")


def _users(chosen: frozenset[int]) -> Generator[Question, bytes, dict[int, JsonObject]]:
    """Return the usage of those of the *chosen* users that have a connection. Pages with higher user ids are not read."""
    found: dict[int, JsonObject] = {}
    last = max(chosen, default=-1)
    after: int | None = None
    for _ in range(_MOST_PAGES):
        if not chosen or (after is not None and after >= last):
            break
        page = parse_document(controls.USERS, (yield controls.USERS, _payload(after)))
        found.update(_by_uid(page))
        after = _next(controls.USERS, page, after)
        if after is None:
            break
    return {uid: user for uid, user in found.items() if uid in chosen}


def _payload(after: int | None) -> bytes | None:
    """Return the payload of the request for the page after user *after*."""
    return None if after is None else b"%d" % after


def _by_uid(page: JsonObject) -> dict[int, JsonObject]:
    """Return the users of a page."""
    users = page.get("users")
    items = [each for each in users if isinstance(each, dict)] if isinstance(users, list) else []
    return {uid: each for each in items if isinstance(uid := each.get("uid"), int)}


def _next(key: bytes, page: JsonObject, after: int | None) -> int | None:
    """Return where the next page begins, or None. Raises BadResponseError if the pages repeat."""
    following = page.get("next")
    if not isinstance(following, int):
        return None
    if after is not None and following <= after:
        raise BadResponseError(key, "the pages repeat")
    return following
