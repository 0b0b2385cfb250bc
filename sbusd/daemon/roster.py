"""Who is on the bus: the clients, and who may see whom."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from sbusd.daemon.syscalls import inode_of
from sbusd.protocol.credentials import Credentials


@dataclass(slots=True, eq=False)
class Client:
    """One connection as the broker knows it.

    ``since`` is Unix time in seconds; ``fd`` is the bus's end of it, which is the switch's; ``subscriptions`` counts stored instances;
    ``soft``, ``hard`` and ``order`` are its modes.
    """

    connection: int
    credentials: Credentials
    since: float
    fd: int = -1
    known_inode: int = 0
    """0 until :attr:`inode` is asked for: to learn it takes a system call."""
    subscriptions: int = 0
    soft: str = "queue"
    hard: str = "discard"
    order: str = "queue"
    wants_senders: bool = False
    wants_batches: bool = False
    tap: bytes | None = None
    """The pattern of what it is told of, if it has a tap."""
    farewell: str = ""
    """Why the broker ends the connection, once it does."""

    @property
    def inode(self) -> int:
        """The inode of the bus's end, by which sock_diag(7) knows it. Raises OSError if the socket is closed."""
        if not self.known_inode:
            self.known_inode = inode_of(self.fd)
        return self.known_inode


@dataclass(frozen=True, slots=True)
class Page:
    """Some clients in order of their numbers: ``next`` is what to start after for more, None at the end."""

    clients: tuple[Client, ...]
    next: int | None


class Roster:
    """The clients by the number of their connection, which only grows, so the order of arrival is the order of numbers."""

    def __init__(self, owners: frozenset[int]) -> None:
        self._owners = owners
        self._clients: dict[int, Client] = {}
        self.client_of = self._clients.__getitem__
        """The same as ``roster[connection]``, without a call of Python's: for each control packet."""
        self._numbers: list[int] = []
        """The same numbers, in their order, to begin anywhere among them."""
        self._of_user: dict[int, list[int]] = {}
        """The numbers of each user's clients, in their order."""

    def __len__(self) -> int:
        """Return how many clients there are."""
        return len(self._clients)

    def __iter__(self) -> Iterator[Client]:
        """Iterate over the clients, oldest first."""
        return iter(self._clients.values())

    def __contains__(self, connection: int) -> bool:
        """Return whether there is such a client."""
        return connection in self._clients

    def __getitem__(self, connection: int) -> Client:
        """Return a client. Raises KeyError if there is no such connection."""
        return self._clients[connection]

    def add(self, connection: int, credentials: Credentials, since: float, fd: int = -1, inode: int = 0) -> Client:
        """Take in a new client and return it; *inode* 0 is one that is not known yet."""
        client = self._clients[connection] = Client(connection, credentials, since, fd, inode)
        insort(self._numbers, connection)
        insort(self._of_user.setdefault(credentials.uid, []), connection)
        return client

    def remove(self, connection: int) -> Client | None:
        """Take out a client and return it, or return None if it never was one."""
        client = self._clients.pop(connection, None)
        if client is not None:
            uid = client.credentials.uid
            for numbers in (self._numbers, self._of_user[uid]):
                del numbers[bisect_left(numbers, connection)]
            if not self._of_user[uid]:
                del self._of_user[uid]
        return client

    def following(self, connection: int) -> Client | None:
        """Return the client with the next number above *connection*, or None if there is none."""
        place = bisect_right(self._numbers, connection)
        return self._clients[self._numbers[place]] if place < len(self._numbers) else None

    def after(self, connection: int, uid: int | None = None) -> Iterator[Client]:
        """Iterate over the clients with numbers above *connection*, of one user or of all, oldest first, without a look at the others.

        Not while clients come or go.
        """
        numbers = self._numbers if uid is None else self._of_user.get(uid, [])
        for place in range(bisect_right(numbers, connection), len(numbers)):
            yield self._clients[numbers[place]]

    def set_owners(self, owners: frozenset[int]) -> None:
        """Let these users be the owners from now on."""
        self._owners = owners

    def is_owner(self, client: Client) -> bool:
        """Return whether a client belongs to root, the bus's own user or an admin."""
        return client.credentials.uid in self._owners

    def may_see(self, viewer: Client, client: Client) -> bool:
        """Return whether *viewer* may know of *client*: an owner of all, others of their own user's."""
        return self.is_owner(viewer) or viewer.credentials.uid == client.credentials.uid

    def hidden_from(self, viewer: Client, *, sees_all: bool = False) -> int:
        """Return how many clients *viewer* may not see; none if for another reason it *sees_all*."""
        if sees_all or self.is_owner(viewer):
            return 0
        return len(self) - len(self._of_user.get(viewer.credentials.uid, ()))

    def page(self, viewer: Client, after: int, size: int, *, sees_all: bool = False) -> Page:
        """Return at most *size* of the clients that *viewer* may see, those with numbers above *after*."""
        visible = self.after(after, None if sees_all or self.is_owner(viewer) else viewer.credentials.uid)
        clients = tuple(islice(visible, size))
        more = len(clients) == size and next(visible, None) is not None
        return Page(clients, clients[-1].connection if more else None)
