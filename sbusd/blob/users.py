"""What each user holds and has done: quotas and counters of the users that are charged. No I/O. Spec: blob.toml(5), "quotas"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sbusd.blob.refusals import Cause, Refusal
from sbusd.config.blob import BlobQuotas
from sbusd.config.subordinate_ids import ChargedUsers

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
