"""The blobs of all users by ticket, and the tickets that have ended. No I/O. Spec: sbus-blob(8)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from sbusd.blob.refusals import Cause, Refusal
from sbusd.blob.users import User
from sbusd.protocol.blobs import MAX_EXPIRE, Recipient, new_ticket
from sbusd.protocol.credentials import Credentials

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
