# cython: language_level=3
"""Who is on the bus: the clients, and who may see whom. Compiled, for each client that comes and goes is noted here."""

from bisect import bisect_left, bisect_right, insort
from collections import namedtuple
from itertools import islice

from sbusd.state.syscalls import inode_of


cdef class Client:
    """One connection as the broker knows it.

    ``since`` is Unix time in seconds; ``fd`` is the bus's end of it, which is the switch's; ``subscriptions`` counts stored instances;
    ``soft``, ``hard`` and ``order`` are its modes; ``tap`` is the pattern of its tap, if it has one; ``farewell`` is why the
    broker ends the connection, once it does. ``known_inode`` is 0 until :attr:`inode` is asked for: to learn it takes a system call.
    ``cred`` is what ``whoami`` answers: the head of the client's secret keys, prepared once. ``allowed`` are ordinary patterns that the
    rules are known to allow it, shared by all clients with the same credentials but for the pid.
    """

    def __init__(self, connection, credentials, double since, int fd=-1, known_inode=0):
        self.connection = connection
        self.credentials = credentials
        self.since = since
        self.fd = fd
        self.known_inode = known_inode
        self.soft = "queue"
        self.hard = "discard"
        self.order = "queue"
        self.cred = b""
        self.farewell = ""

    @property
    def inode(self):
        """The inode of the bus's end, by which sock_diag(7) knows it. Raises OSError if the socket is closed."""
        if not self.known_inode:
            self.known_inode = inode_of(self.fd)
        return self.known_inode


Page = namedtuple("Page", "clients next")
Page.__doc__ = """Some clients in order of their numbers: ``next`` is what to start after for more, None at the end."""


cdef int insert(list numbers, number) except -1:
    """Put *number* into its place among *numbers*: mostly the last, for numbers of connections only grow."""
    if not numbers or numbers[len(numbers) - 1] < number:
        numbers.append(number)
    else:
        insort(numbers, number)
    return 0


cdef class Roster:
    """The clients by the number of their connection, which only grows, so the order of arrival is the order of numbers."""

    def __init__(self, owners):
        self.owners = owners
        self.clients = {}
        self.numbers = []
        self.of_user = {}

    def __len__(self):
        """Return how many clients there are."""
        return len(self.clients)

    def __iter__(self):
        """Iterate over the clients, oldest first."""
        return iter(self.clients.values())

    def __contains__(self, connection):
        """Return whether there is such a client."""
        return connection in self.clients

    def __getitem__(self, connection):
        """Return a client. Raises KeyError if the connection is not a client's."""
        return self.clients[connection]

    cpdef Client add(self, connection, credentials, double since, int fd=-1, inode=0):
        """Take in a new client and return it; *inode* 0 is one that is not known yet."""
        cdef Client client = Client(connection, credentials, since, fd, inode)
        self.clients[connection] = client
        insert(self.numbers, connection)
        numbers = self.of_user.get(credentials.uid)
        if numbers is None:
            numbers = self.of_user[credentials.uid] = []
        insert(<list>numbers, connection)
        return client

    cpdef remove(self, connection):
        """Take out a client and return it, or return None if it never was one."""
        cdef list numbers
        found = self.clients.pop(connection, None)
        if found is not None:
            uid = (<Client>found).credentials.uid
            numbers = <list>self.of_user[uid]
            del self.numbers[bisect_left(self.numbers, connection)]
            del numbers[bisect_left(numbers, connection)]
            if not numbers:
                del self.of_user[uid]
        return found

    cdef Client client_of(self, connection):
        """The same as ``roster[connection]``, for each control packet."""
        return <Client>self.clients[connection]

    def following(self, connection):
        """Return the client with the next number above *connection*, or None if there is none."""
        place = bisect_right(self.numbers, connection)
        return self.clients[self.numbers[place]] if place < len(self.numbers) else None

    def after(self, connection, uid=None):
        """Iterate over the clients with numbers above *connection*, of one user or of all, oldest first, without a look at the others.

        Not while clients come or go.
        """
        numbers = self.numbers if uid is None else self.of_user.get(uid, [])
        for place in range(bisect_right(numbers, connection), len(numbers)):
            yield self.clients[numbers[place]]

    def set_owners(self, owners):
        """Let these users be the owners from now on."""
        self.owners = owners

    def is_owner(self, client):
        """Return whether a client belongs to root, the bus's own user or an admin."""
        return client.credentials.uid in self.owners

    def may_see(self, viewer, client):
        """Return whether *viewer* may know of *client*: an owner of all, others of their own user's."""
        return self.is_owner(viewer) or viewer.credentials.uid == client.credentials.uid

    def hidden_from(self, viewer, *, sees_all=False):
        """Return how many clients *viewer* may not see; none if for another reason it *sees_all*."""
        if sees_all or self.is_owner(viewer):
            return 0
        return len(self) - len(self.of_user.get(viewer.credentials.uid, ()))

    def page(self, viewer, after, size, *, sees_all=False):
        """Return at most *size* of the clients that *viewer* may see, those with numbers above *after*."""
        visible = self.after(after, None if sees_all or self.is_owner(viewer) else viewer.credentials.uid)
        clients = tuple(islice(visible, size))
        more = len(clients) == size and next(visible, None) is not None
        return Page(clients, clients[-1].connection if more else None)
