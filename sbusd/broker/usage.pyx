# cython: language_level=3
"""The resources that each user uses: connections, descriptors, subscriptions, control packets.

Compiled, because each connect, control packet, subscription and disconnect is counted here. This module handles requests within the quotas;
`sbusd.broker.quotas` handles refusals. Spec: sbusd.toml(5), [quotas].
"""

from sbusd.dataplane.libc cimport CLOCK_MONOTONIC, clock_gettime, timespec

import time
from collections import Counter

from sbusd.state.records import STORED_BYTES

MAX_ABSENT_USERS = 4_096
"""Maximum number of users without a connection that are remembered, a kilobyte each."""

SEGMENT_BYTES = 240
"""Maximum memory of one segment of a pattern in the switch, measured. The bytes of the pattern are stored twice in addition.

A segment takes this much if another pattern has or had the same segments before it; otherwise it takes only its bytes. Without this charge,
a megabyte of separators would use a quarter of a gigabyte and be charged as a megabyte.
"""

STATE_COPIES = 2
"""Maximum number of copies of a pattern in the kept state: one in the log, one in the next log while that is being written."""

PATTERN_BYTES = 120 + STATE_COPIES * STORED_BYTES
"""Additional memory of a pattern: at most 120 bytes in the switch, measured, and the headers of its records in the kept state."""

cdef long long _SEGMENT_BYTES = SEGMENT_BYTES
cdef long long _PATTERN_BYTES = PATTERN_BYTES
cdef long long _PATTERN_COPIES = 2 + STATE_COPIES


cdef class TokenBucket:
    """A token bucket: holds at most ``burst`` tokens and gains ``rate`` tokens per second. The caller passes the time.

    ``tokens`` is the content at the time ``since``, in seconds of a monotonic clock.
    """

    def __init__(self, double rate, double burst, double tokens, double since):
        self.rate = rate
        self.burst = burst
        self.tokens = tokens
        self.since = since

    @classmethod
    def full(cls, rate, burst, now):
        """Return a full bucket."""
        return cls(rate, burst, burst, now)

    cpdef bint take(self, double now):
        """Take a token and return True, or return False if there is none."""
        self.refill(now)
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True

    cpdef refill(self, double now):
        """Add the tokens gained until *now*. A time before the last one adds nothing."""
        if now > self.since:
            self.tokens = min(self.burst, self.tokens + (now - self.since) * self.rate)
            self.since = now

    def resize(self, double rate, double burst, double now):
        """Change rate and burst from *now* on. Used tokens of the burst stay used."""
        cdef double used
        self.refill(now)
        used = self.burst - self.tokens
        self.rate = rate
        self.burst = burst
        self.tokens = max(0.0, burst - used)

    cpdef double full_at(self):
        """Return the time at which the bucket is full if no token is taken, in seconds."""
        return self.since + (self.burst - self.tokens) / self.rate


cdef class ConnectionUsage:
    """The usage of one connection. ``descriptors`` are its socket and the descriptor of its process, if the bus watches that.

    ``tolerance`` is a bucket of refused control packets; it is made with the first refusal.
    """

    def __init__(self, pid, descriptors=1, control_packets=0, tolerance=None):
        self.pid = pid
        self.descriptors = descriptors
        self.control_packets = control_packets
        self.tolerance = tolerance


cdef class UserUsage:
    """The usage of one user, summed over its connections, and its limits.

    ``credentials`` are those of the latest connection; they determine ``limits``. ``control``, ``attempts`` and ``records`` are the buckets of
    control packets, connection attempts and log records of refusals. ``refused`` counts refusals by quota.
    """

    def __init__(self, credentials, limits, is_owner, control, attempts, records):
        self.credentials = credentials
        self.limits = limits
        self.is_owner = is_owner
        self.control = control
        self.attempts = attempts
        self.records = records
        self.connections = {}
        self.refused = Counter()

    @property
    def uid(self):
        """The user id."""
        return self.credentials.uid

    cpdef bint is_settled(self, double now):
        """Return whether both rate buckets are full, so that the user gains nothing from being forgotten."""
        return self.control.full_at() <= now and self.attempts.full_at() <= now

    cpdef add_descriptors(self, connection, long long count):
        """Add to the descriptors of a connection and of the user."""
        (<ConnectionUsage>self.connections[connection]).descriptors += count
        self.descriptors += count

    cpdef add_patterns(self, connection, long long count, long long size):
        """Add to the stored patterns of a connection and of the user; *size* in bytes."""
        cdef ConnectionUsage used = <ConnectionUsage>self.connections[connection]
        used.subscriptions += count
        used.pattern_bytes += size
        self.subscriptions += count
        self.pattern_bytes += size


cdef class AbsentUsers:
    """Users without a connection, in the order in which they left. Reconnecting does not refill their buckets.

    ``forgotten_early`` counts users that were removed because the table was full.
    """

    def __init__(self):
        self.users = {}

    def __len__(self):
        """Return the number of users."""
        return len(self.users)

    cdef int keep(self, UserUsage user, double now) except -1:
        """Add a user unless its buckets are full. Each call removes up to two settled users, and one more if the table is full."""
        if user.is_settled(now):
            return 0
        self.users[user.credentials.uid] = user
        oldest = []
        for uid in self.users:
            oldest.append(uid)
            if len(oldest) == 2:
                break
        for uid in oldest:
            if (<UserUsage>self.users[uid]).is_settled(now):
                del self.users[uid]
        if <long long>len(self.users) > <long long>MAX_ABSENT_USERS:
            del self.users[next(iter(self.users))]
            self.forgotten_early += 1
        return 0


cdef class UsageTable:
    """The usage of all users of one bus. *capacity* is the number of descriptors for all users, *separator* that of keys.

    *clock* counts seconds. `sbusd.broker.quotas.UserQuotas` supplies the methods that find limits and refuse requests.
    """

    def __init__(self, capacity, bytes separator, clock):
        self.present = {}
        self.absent = AbsentUsers()
        self.by_connection = {}
        self.capacity = capacity
        self.separator = separator
        self.clock = clock
        self.is_monotonic = clock is time.monotonic

    cpdef double now(self) except? -1.0:
        """Return the time, in seconds."""
        cdef timespec now
        if not self.is_monotonic:
            return self.clock()
        clock_gettime(CLOCK_MONOTONIC, &now)
        return now.tv_sec + now.tv_nsec / 1e9

    cdef UserUsage user_of(self, connection):
        """Return the user of a connection. Raises KeyError if there is no such connection."""
        return <UserUsage>self.by_connection[connection]

    cpdef admit(self, connection, credentials):
        """Charge a new connection to its user and return None, or return the refusal. A refused connection counts only as an attempt."""
        cdef double now = self.now()
        cdef UserUsage user
        cdef ConnectionUsage used
        uid = credentials.uid
        found = self.present.get(uid)
        is_present = found is not None
        if not is_present:
            found = self.absent.users.pop(uid, None)
        if found is None:
            found = self.new_user(credentials, now)
        user = <UserUsage>found
        before = user.credentials
        if credentials.gid == before.gid and credentials.groups == before.groups:
            user.credentials = credentials
        else:
            self.update_limits(user, credentials, now)
        refusal = None
        if not user.attempts.take(now):
            refusal = self.refuse_attempt(user, now)
        elif not self.has_descriptor(user):
            refusal = self.refuse_connection(user, now)
        else:
            used = ConnectionUsage.__new__(ConnectionUsage)
            used.pid = credentials.pid
            used.descriptors = 1
            user.connections[connection] = used
            user.descriptors += 1
            self.descriptors += 1
            self.by_connection[connection] = user
        if not is_present:
            self.update_presence(user, now)
        return refusal

    cdef bint has_descriptor(self, UserUsage user) except -1:
        """Return whether a user may use one more descriptor."""
        cdef long long limit = user.limits.connections
        if user.descriptors >= limit:
            return False
        return user.is_owner or user.descriptors < max(<long long>0, self.half_of_free(user))

    cpdef long long half_of_free(self, UserUsage user):
        """Return half of the descriptors that other users do not use."""
        return (self.capacity - (self.descriptors - user.descriptors)) // 2

    cpdef leave(self, connection):
        """Release all that a connection used. A connection that was not admitted used nothing."""
        cdef UserUsage user
        cdef ConnectionUsage used
        found = self.by_connection.pop(connection, None)
        if found is None:
            return
        user = <UserUsage>found
        used = <ConnectionUsage>user.connections.pop(connection)
        user.descriptors -= used.descriptors
        user.subscriptions -= used.subscriptions
        user.pattern_bytes -= used.pattern_bytes
        self.descriptors -= used.descriptors
        if not user.connections:
            del self.present[user.credentials.uid]
            self.update_presence(user, self.now())

    cpdef charge_control(self, connection):
        """Charge a control packet and return None, or return the refusal."""
        cdef UserUsage user = self.user_of(connection)
        cdef ConnectionUsage used = <ConnectionUsage>user.connections[connection]
        cdef double now = self.now()
        used.control_packets += 1
        return None if user.control.take(now) else self.refuse_control(user, used, now)

    cpdef charge_subscription(self, connection, bytes pattern):
        """Charge one more stored instance of *pattern* and return None, or return the refusal."""
        cdef UserUsage user = self.user_of(connection)
        cdef long long size = self.memory_of(pattern), limit = user.limits.subscriptions
        if user.subscriptions >= limit:
            return self.refuse_subscription(user, user.subscriptions, limit)
        limit = user.limits.pattern_bytes
        if user.pattern_bytes + size > limit:
            return self.refuse_pattern(user, user.pattern_bytes, limit)
        user.add_patterns(connection, 1, size)
        return None

    cpdef release_subscription(self, connection, bytes pattern):
        """Release one stored instance of *pattern*."""
        self.user_of(connection).add_patterns(connection, -1, -self.memory_of(pattern))

    cpdef long long memory_of(self, bytes pattern):
        """Return the charge of one stored instance of *pattern*, in bytes of memory."""
        cdef long long segments = pattern.count(self.separator) + 1
        return _PATTERN_COPIES * <long long>len(pattern) + _SEGMENT_BYTES * segments + _PATTERN_BYTES

    cdef int update_presence(self, UserUsage user, double now) except -1:
        """Put a user into the table of present users if it has a connection, otherwise into that of absent users."""
        if user.connections:
            self.present[user.credentials.uid] = user
        else:
            self.absent.keep(user, now)
        return 0
