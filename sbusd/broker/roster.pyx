# cython: language_level=3
"""The roster: the clients of the bus, and the clients that each may see. Compiled, because each connect and disconnect changes it."""

from bisect import bisect_left, bisect_right, insort
from collections import namedtuple
from itertools import islice

cimport cython

from sbusd.dataplane.switch cimport first, free_stored, instances_of, item_after, store_instance, text_of

from sbusd.state.syscalls import inode_of

MAX_ALLOWED = 64
"""Maximum number of patterns in `AllowedPatterns`."""

MAX_ALLOWED_BYTES = 64
"""Maximum length of a pattern in it. All sets together take less than 10 MiB."""

cdef Py_ssize_t _MAX_ALLOWED = MAX_ALLOWED
cdef Py_ssize_t _MAX_ALLOWED_BYTES = MAX_ALLOWED_BYTES


cdef class AllowedPatterns:
    """Ordinary patterns that the rules allow to all clients with the same user and groups: a cache, emptied when it is full."""

    def __dealloc__(self):
        free_stored(&self.patterns)

    def __len__(self):
        """Return the number of patterns."""
        return self.count

    def __iter__(self):
        """Iterate over the patterns, in the order of their bytes."""
        cdef Item* pattern = first(self.patterns)
        found = []
        while pattern is not NULL:
            found.append(text_of(pattern)[:pattern.length])
            pattern = item_after(self.patterns, text_of(pattern), pattern.length)
        return iter(found)

    def __contains__(self, bytes pattern):
        """Return whether a pattern is in the cache."""
        return instances_of(&self.patterns, pattern, len(pattern)) != 0

    def add(self, bytes pattern):
        """Add a pattern that is not in the cache, unless it is too long."""
        if len(pattern) > _MAX_ALLOWED_BYTES:
            return
        if self.count >= _MAX_ALLOWED:
            free_stored(&self.patterns)
            self.count = 0
        store_instance(&self.patterns, pattern, len(pattern))
        self.count += 1


cdef void begin(Client client, connection, credentials, double since, int fd, known_inode) noexcept:
    """Set what is known of a new client."""
    client.connection = connection
    client.credentials = credentials
    client.since = since
    client.fd = fd
    client.known_inode = known_inode
    client.end_reason = client.name = ""
    client.state.client = <void*>client


@cython.no_gc
@cython.freelist(64)
cdef class Client:
    """A connected client.

    ``since`` is the time of the connect on the boot clock, in seconds; ``fd`` is the socket, which the switch owns; ``subscriptions``
    counts stored instances; ``placement`` is the place of its process in the units of systemd, None if it is not known, ``awaits_unit``
    whether that is still being read, and ``is_unit_late`` whether its packets are handled meanwhile; ``tap`` is the pattern of its tap,
    None without one; ``name`` is the label that it has given to itself; ``end_reason`` is the reason once the broker disconnects it.
    ``known_inode`` is 0 until :attr:`inode` is read, because that takes a system call. ``allowed`` are ordinary patterns that the rules
    allow, a cache that all clients with the same user and groups share.
    """

    def __init__(self, connection, credentials, double since, int fd=-1, known_inode=0):
        begin(self, connection, credentials, since, fd, known_inode)

    @property
    def subscriptions(self):
        """The number of stored instances of patterns."""
        return self.state.subscriptions

    @subscriptions.setter
    def subscriptions(self, long long count):
        self.state.subscriptions = count

    @property
    def inode(self):
        """The inode of the socket of the bus, which identifies it in sock_diag(7). Raises OSError if the socket is closed."""
        if not self.known_inode:
            self.known_inode = inode_of(self.fd)
        return self.known_inode


Page = namedtuple("Page", "clients next")
Page.__doc__ = """Some clients in the order of their numbers. ``next`` is the number after which the next page starts, None on the last page."""


cdef int insert(list numbers, number) except -1:
    """Insert *number* into sorted *numbers*. The place is mostly the last, because numbers of connections only grow."""
    if not numbers or numbers[len(numbers) - 1] < number:
        numbers.append(number)
    else:
        insort(numbers, number)
    return 0


cdef int delete(list numbers, number) except -1:
    """Delete *number* from sorted *numbers*. It is often the last, because most connections are short."""
    if numbers[len(numbers) - 1] == number:
        numbers.pop()
    else:
        del numbers[bisect_left(numbers, number)]
    return 0


cdef class EventListeners:
    """The connections that have stored patterns for events."""

    def __init__(self):
        self.patterns = {}

    def __len__(self):
        """Return the number of connections."""
        return self.count

    def add(self, connection, int count):
        """Add to the number of such patterns of a connection."""
        self.patterns[connection] = self.patterns.get(connection, 0) + count
        if not self.patterns[connection]:
            del self.patterns[connection]
        self.count = len(self.patterns)

    def remove(self, connection):
        """Forget a connection."""
        self.patterns.pop(connection, None)
        self.count = len(self.patterns)


cdef class Roster:
    """The clients by the number of their connection. These numbers only grow, so their order is that of the connects."""

    def __init__(self, owners):
        self.owners = owners
        self.clients = {}
        self.numbers = []
        self.of_user = {}

    def __len__(self):
        """Return the number of clients."""
        return len(self.clients)

    def __iter__(self):
        """Iterate over the clients, oldest first."""
        return iter(self.clients.values())

    def __contains__(self, connection):
        """Return whether a connection is a client."""
        return connection in self.clients

    def __getitem__(self, connection):
        """Return a client. Raises KeyError if the connection is not a client."""
        return self.clients[connection]

    cpdef Client add(self, connection, credentials, double since, int fd=-1, inode=0):
        """Add a new client and return it. *inode* 0 means that it is not known yet."""
        cdef Client client = Client.__new__(Client)
        begin(client, connection, credentials, since, fd, inode)
        self.clients[connection] = client
        insert(self.numbers, connection)
        numbers = self.of_user.get((<tuple>credentials)[1])
        if numbers is None:
            numbers = self.of_user[credentials.uid] = []
        insert(<list>numbers, connection)
        return client

    cpdef remove(self, connection):
        """Remove a client and return it, or return None if the connection is not a client."""
        cdef list numbers
        found = self.clients.pop(connection, None)
        if found is not None:
            uid = (<tuple>(<Client>found).credentials)[1]
            numbers = <list>self.of_user[uid]
            delete(self.numbers, connection)
            delete(numbers, connection)
            if not numbers:
                del self.of_user[uid]
        return found

    cdef Client client_of(self, connection):
        """The same as ``roster[connection]``, but faster."""
        return <Client>self.clients[connection]

    @property
    def newest(self):
        """The greatest number of a client; 0 if there is none."""
        return self.numbers[-1] if self.numbers else 0

    def following(self, connection):
        """Return the client with the next number above *connection*, or None if there is none."""
        place = bisect_right(self.numbers, connection)
        return self.clients[self.numbers[place]] if place < len(self.numbers) else None

    def after(self, connection, uid=None):
        """Iterate over the clients with numbers above *connection*, of one user or of all, oldest first. Other clients cost no time.

        Do not add or remove clients meanwhile.
        """
        numbers = self.numbers if uid is None else self.of_user.get(uid, [])
        for place in range(bisect_right(numbers, connection), len(numbers)):
            yield self.clients[numbers[place]]

    def set_owners(self, owners):
        """Set the owners of the bus."""
        self.owners = owners

    def is_owner(self, client):
        """Return whether the user of a client is root, the bus's own user or an admin."""
        return client.credentials.uid in self.owners

    def may_see(self, viewer, client):
        """Return whether *viewer* may see *client*: owners see all clients, others those of their own user."""
        return self.is_owner(viewer) or viewer.credentials.uid == client.credentials.uid

    def hidden_from(self, viewer, *, sees_all=False):
        """Return the number of clients that *viewer* may not see; 0 if it *sees_all* for another reason."""
        if sees_all or self.is_owner(viewer):
            return 0
        return len(self) - len(self.of_user.get(viewer.credentials.uid, ()))

    def page(self, viewer, after, size, *, sees_all=False):
        """Return at most *size* clients that *viewer* may see, with numbers above *after*."""
        visible = self.after(after, None if sees_all or self.is_owner(viewer) else viewer.credentials.uid)
        clients = tuple(islice(visible, size))
        more = len(clients) == size and next(visible, None) is not None
        return Page(clients, clients[-1].connection if more else None)
