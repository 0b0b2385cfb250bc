"""The blobs of all users by ticket, ended tickets, and the quotas and counters of users. No I/O. Spec: sbus-blob(8), blob.toml(5)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from sbus.protocol.blobs import MAX_EXPIRE, Recipient, new_ticket
from sbus.protocol.credentials import Credentials
from sbus_programs.config.blob import BlobQuotas
from sbus_programs.config.users import ChargedUsers
from sbus_services.blob.requests import Cause, Refusal

GUESS_SECONDS = 60.0
"""The interval of the quota ``wrong_tickets``."""

MAX_REMEMBERED = 1_000
"""Users without connections and blobs whose counters are kept."""


@dataclass(slots=True)
class User:
    """One user. The service changes the numbers when something begins or ends."""

    uid: int
    connections: int = 0
    blobs: int = 0
    bytes: int = 0
    requests: int = 0
    """Requests that wait for the bus."""
    counters: Counter[str] = field(default_factory=Counter)
    wrong_tickets: int = 0
    wrong_since: float = float("-inf")

    @property
    def is_idle(self) -> bool:
        """Whether nothing of this user is here."""
        return not (self.connections or self.blobs or self.requests)


class Users:
    """All users that are *charged*, and their quotas. *clock* counts seconds."""

    def __init__(self, quotas: BlobQuotas, clock: Callable[[], float], charged: ChargedUsers) -> None:
        self.quotas = quotas
        self.refused: Counter[str] = Counter()
        """Refused requests of all users, by counter."""
        self._clock = clock
        self._charged = charged
        self._users: dict[int, User] = {}

    def __iter__(self) -> Iterator[User]:
        return iter(self._users.values())

    def of(self, uid: int) -> User:
        """Return the user that is charged for *uid*. Keep it with what is charged: another one can be charged for the next."""
        user = self._charged.of(uid)
        if user not in self._users:
            self._users[user] = User(user)
        return self._users[user]

    def count(self, user: User, name: str) -> None:
        """Count an event of *user*."""
        user.counters[name] += 1

    def count_refusal(self, user: User, cause: Cause) -> None:
        """Count a refused request of *user*."""
        user.counters[f"refused-{cause.counter}"] += 1
        self.refused[cause.counter] += 1

    def check_connection(self, user: User) -> None:
        """Raise Refusal if *user* has too many connections."""
        if user.connections >= self.quotas.connections:
            raise Refusal(Cause.QUOTA_CONNECTIONS, f"user {user.uid} has {self.quotas.connections} connections, the maximum; close one")

    def check_blob(self, user: User, size: int) -> None:
        """Raise Refusal if *user* may have no further blob of *size* bytes."""
        if user.blobs >= self.quotas.blobs:
            raise Refusal(Cause.QUOTA_BLOBS, f"user {user.uid} has {self.quotas.blobs} blobs, the maximum; drop one")
        self.check_bytes(user, size)

    def check_bytes(self, user: User, size: int) -> None:
        """Raise Refusal if the blobs of *user* may not have *size* more bytes."""
        if user.bytes + size > self.quotas.bytes:
            have = f"user {user.uid} has {user.bytes} bytes in blobs"
            raise Refusal(Cause.QUOTA_BYTES, f"{have}; with {size} more they would be above the maximum of {self.quotas.bytes}")

    def check_request(self, user: User) -> None:
        """Raise Refusal if too many requests of *user* wait for the bus."""
        if user.requests >= self.quotas.requests:
            raise Refusal(Cause.QUOTA_REQUESTS, f"{user.requests} requests of user {user.uid} wait for the bus; try again")

    def check_guesses(self, user: User) -> None:
        """Raise Refusal if *user* has used too many unknown tickets."""
        if self._clock() - user.wrong_since >= GUESS_SECONDS:
            user.wrong_tickets = 0
        if user.wrong_tickets >= self.quotas.wrong_tickets:
            raise Refusal(Cause.GUESSING, f"user {user.uid} has used {user.wrong_tickets} unknown tickets; wait a minute")

    def count_guess(self, user: User) -> None:
        """Count an unknown ticket of *user*."""
        if not user.wrong_tickets:
            user.wrong_since = self._clock()
        user.wrong_tickets += 1

    def forget_idle(self) -> None:
        """Forget idle users if there are many, those first that have been here longest."""
        idle = [user for user in self if user.is_idle and self._clock() - user.wrong_since >= GUESS_SECONDS]
        for user in idle[: max(0, len(self._users) - MAX_REMEMBERED)]:
            del self._users[user.uid]


MAX_ENDED = 256
"""Ended tickets of each user whose reasons are remembered."""


class End(Enum):
    """Why a blob has ended; the name is a counter, the value is for people."""

    EXPIRED = "it has expired"
    USED = "all its uses are over"
    DROPPED = "its owner has dropped it"
    DISCONNECTED = "its owner has disconnected"
    UNREADABLE = "its owner has made it unreadable"


@dataclass(slots=True)
class Blob:
    """One descriptor with its ticket. ``connection`` is the one that it ends with, or None."""

    fd: int
    size: int
    type: str
    owner: Credentials
    user: User
    """Who is charged for it."""
    recipient: Recipient
    uses: int | None
    until: float
    """When it expires, by the clock of the registry."""
    is_any: bool
    connection: object | None
    ticket: str = field(default_factory=new_ticket)


class Registry:
    """The blobs that are here. *clock* counts seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._blobs: dict[str, Blob] = {}
        self._of_users: dict[int, dict[str, Blob]] = {}
        self._ended: dict[str, End] = {}
        self._ended_of: dict[int, deque[tuple[float, str]]] = {}

    def __len__(self) -> int:
        return len(self._blobs)

    def __iter__(self) -> Iterator[Blob]:
        return iter(self._blobs.values())

    def add(self, blob: Blob) -> None:
        """Add *blob*."""
        self._blobs[blob.ticket] = blob
        self._of_users.setdefault(blob.owner.uid, {})[blob.ticket] = blob

    def find(self, ticket: str) -> Blob:
        """Return the blob with *ticket*. Raises Refusal: GONE with the reason, or UNKNOWN_TICKET."""
        blob = self._blobs.get(ticket)
        if blob is not None and blob.until > self._clock():
            return blob
        end = End.EXPIRED if blob is not None else self._ended.get(ticket)
        if end is None:
            raise Refusal(Cause.UNKNOWN_TICKET, "unknown ticket: the blob ended long ago, or the service has been restarted")
        raise Refusal(Cause.GONE, f"the blob is gone: {end.value}")

    def own(self, ticket: str, uid: int) -> Blob:
        """Return the blob with *ticket* of the user *uid*. Raises Refusal; blobs of others look like unknown ones."""
        blob = self._of_users.get(uid, {}).get(ticket)
        if blob is None:
            raise Refusal(Cause.UNKNOWN_TICKET, "no blob of this user has the ticket")
        return blob

    def of_user(self, uid: int, after: str = "") -> list[Blob]:
        """Return the blobs of the user *uid* behind the ticket *after*, in the order of their tickets."""
        return sorted((blob for blob in self._of_users.get(uid, {}).values() if blob.ticket > after), key=lambda blob: blob.ticket)

    def of_connection(self, uid: int, connection: object) -> list[Blob]:
        """Return the blobs of the user *uid* that end with *connection*."""
        return [blob for blob in self._of_users.get(uid, {}).values() if blob.connection is connection]

    def end(self, blob: Blob, why: End) -> bool:
        """Remove *blob*, and remember *why*; return whether it was here. The caller closes its descriptor."""
        if self._blobs.pop(blob.ticket, None) is None:
            return False
        of_user = self._of_users[blob.owner.uid]
        del of_user[blob.ticket]
        if not of_user:
            del self._of_users[blob.owner.uid]
        ended = self._ended_of.setdefault(blob.user.uid, deque())
        ended.append((self._clock(), blob.ticket))
        self._ended[blob.ticket] = why
        if len(ended) > MAX_ENDED:
            del self._ended[ended.popleft()[1]]
        return True

    def forget_ended(self) -> None:
        """Forget tickets that ended so long ago that no message with them is still on its way."""
        limit = self._clock() - MAX_EXPIRE
        for uid, ended in list(self._ended_of.items()):
            while ended and ended[0][0] < limit:
                del self._ended[ended.popleft()[1]]
            if not ended:
                del self._ended_of[uid]
