# cython: language_level=3
"""The resources that each user uses: connections, descriptors, subscriptions, control packets.

Compiled, because each connect, control packet, subscription and disconnect is counted here. This module handles requests within the quotas;
`sbusd.broker.quotas` handles refusals. Spec: sbusd.toml(5), [quotas].
"""

from libc.string cimport memchr

from sbusd.broker.totals cimport TotalsTable, UserTotals
from sbusd.dataplane.libc cimport CLOCK_MONOTONIC, clock_gettime, timespec

import time
from collections import Counter

cimport cython

from sbusd.state.records import STORED_BYTES

MAX_ABSENT_USERS = 4_096
"""Maximum number of users without a connection that are remembered, a kilobyte each."""

SEGMENT_BYTES = 256
"""Maximum memory of one segment of a pattern in the switch, measured. The bytes of the pattern are stored twice in addition.

A segment takes this much if another pattern has or had the same segments before it; otherwise it takes only its bytes. Without this charge,
a megabyte of separators would use a quarter of a gigabyte and be charged as a megabyte.
"""

STATE_COPIES = 2
"""Maximum number of copies of a pattern in the kept state: one in the log, one in the next log while that is being written."""

PATTERN_BYTES = 120 + STATE_COPIES * STORED_BYTES
"""Additional memory of a pattern: at most 120 bytes in the switch, measured, and the headers of its records in the kept state."""

MEMBER_BYTES = 640
"""Additional memory of the pattern of a member of a group: its slot, its name twice, and a group that it may be the only member of."""

cdef enum:
    PID = 0                 # the places of Credentials
    UID = 1
    GID = 2
    GROUPS = 3

cdef long long _SEGMENT_BYTES = SEGMENT_BYTES
cdef long long _PATTERN_BYTES = PATTERN_BYTES
cdef long long _MEMBER_BYTES = MEMBER_BYTES
cdef long long _PATTERN_COPIES = 2 + STATE_COPIES


cdef inline double monotonic() noexcept nogil:
    """Return the time of the monotonic clock, in seconds."""
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec + now.tv_nsec / 1e9


cdef inline bint take_token(Bucket* bucket, double now) noexcept nogil:
    """Take a token and return True, or return False if there is none."""
    fill(bucket, now)
    if bucket.tokens < 1:
        return False
    bucket.tokens -= 1
    return True


cdef inline void fill(Bucket* bucket, double now) noexcept nogil:
    """Add the tokens gained until *now*. A time before the last one adds nothing."""
    if now > bucket.since:
        bucket.tokens = min(bucket.burst, bucket.tokens + (now - bucket.since) * bucket.rate)
        bucket.since = now


cdef class TokenBucket:
    """A token bucket: holds at most ``burst`` tokens and gains ``rate`` tokens per second. The caller passes the time.

    ``tokens`` is the content at the time ``since``, in seconds of a monotonic clock.
    """

    def __init__(self, double rate, double burst, double tokens, double since):
        self.bucket = Bucket(rate, burst, tokens, since)

    @property
    def rate(self):
        """The tokens gained in a second."""
        return self.bucket.rate

    @property
    def burst(self):
        """The maximum number of tokens."""
        return self.bucket.burst

    @property
    def tokens(self):
        """The content at the time ``since``."""
        return self.bucket.tokens

    @tokens.setter
    def tokens(self, double tokens):
        self.bucket.tokens = tokens

    @property
    def since(self):
        """The time of ``tokens``, in seconds."""
        return self.bucket.since

    @since.setter
    def since(self, double since):
        self.bucket.since = since

    @classmethod
    def full(cls, rate, burst, now):
        """Return a full bucket."""
        return cls(rate, burst, burst, now)

    cpdef bint take(self, double now):
        """Take a token and return True, or return False if there is none."""
        return take_token(&self.bucket, now)

    cpdef refill(self, double now):
        """Add the tokens gained until *now*. A time before the last one adds nothing."""
        fill(&self.bucket, now)

    def resize(self, double rate, double burst, double now):
        """Change rate and burst from *now* on. Used tokens of the burst stay used."""
        cdef double used
        fill(&self.bucket, now)
        used = self.bucket.burst - self.bucket.tokens
        self.bucket.rate = rate
        self.bucket.burst = burst
        self.bucket.tokens = max(0.0, burst - used)

    cpdef double full_at(self):
        """Return the time at which the bucket is full if no token is taken, in seconds."""
        return self.bucket.since + (self.bucket.burst - self.bucket.tokens) / self.bucket.rate


cdef inline void charge_patterns(Charge* charge, long long count, long long size) noexcept nogil:
    """Add to the stored patterns of a connection and of its user; *size* in bytes."""
    charge.subscriptions += count
    charge.pattern_bytes += size
    charge.user.subscriptions += count
    charge.user.pattern_bytes += size


@cython.freelist(64)
cdef class ConnectionUsage:
    """The usage of one connection. ``descriptors`` are its socket and the descriptor of its process, if the bus watches that.

    ``tolerance`` is a bucket of refused control packets; it is made with the first refusal.
    """

    @property
    def descriptors(self):
        """The number of descriptors."""
        return self.charge.descriptors

    @property
    def subscriptions(self):
        """The number of stored instances of patterns."""
        return self.charge.subscriptions

    @property
    def pattern_bytes(self):
        """The memory of these, in bytes."""
        return self.charge.pattern_bytes

    @property
    def control_packets(self):
        """The number of control packets."""
        return self.charge.control_packets

    @control_packets.setter
    def control_packets(self, long long count):
        self.charge.control_packets = count


cdef class UserUsage:
    """The usage of one user, summed over its connections, and its limits.

    ``credentials`` are those of the latest connection; they determine ``limits``. ``control``, ``attempts`` and ``records`` are the buckets of
    control packets, connection attempts and log records of refusals. ``refused`` counts refusals by quota. ``totals`` also count what the
    user did before it left and came again.
    """

    def __init__(self, credentials, limits, is_owner, TokenBucket control, attempts, records):
        self.credentials = credentials
        self.limits = limits
        self.is_owner = is_owner
        self.control = control
        self.attempts = attempts
        self.records = records
        self.charge.control = &control.bucket
        self.connections = {}
        self.refused = Counter()
        self.totals = UserTotals()

    @property
    def uid(self):
        """The user id."""
        return self.credentials.uid

    @property
    def limits(self):
        """The quotas of the user."""
        return self.quotas

    @limits.setter
    def limits(self, limits):
        self.quotas = limits
        self.charge.max_descriptors = limits.connections
        self.charge.max_subscriptions = limits.subscriptions
        self.charge.max_pattern_bytes = limits.pattern_bytes
        self.charge.max_queued_packets = limits.queued_packets
        self.charge.max_queued_bytes = limits.queued_bytes

    @property
    def descriptors(self):
        """The number of descriptors."""
        return self.charge.descriptors

    @property
    def subscriptions(self):
        """The number of stored instances of patterns."""
        return self.charge.subscriptions

    @property
    def pattern_bytes(self):
        """The memory of these, in bytes."""
        return self.charge.pattern_bytes

    cpdef bint is_settled(self, double now):
        """Return whether both rate buckets are full, so that the user gains nothing from being forgotten."""
        return self.control.full_at() <= now and self.attempts.full_at() <= now

    cdef bint is_as_new(self, double now):
        """Return whether a user without a connection differs in nothing from a new one."""
        return self.is_settled(now) and self.records.full_at() <= now and self.unrecorded == 0 and not self.refused

    cpdef ConnectionUsage add_connection(self, connection, long long pid):
        """Add a connection that uses nothing yet, of the process *pid*, and return its usage."""
        cdef ConnectionUsage used = ConnectionUsage.__new__(ConnectionUsage)
        used.pid = pid
        used.charge.user = &self.charge
        self.connections[connection] = used
        return used

    cpdef add_descriptors(self, connection, long long count):
        """Add to the descriptors of a connection and of the user."""
        (<ConnectionUsage>self.connections[connection]).charge.descriptors += count
        self.charge.descriptors += count

    cpdef add_patterns(self, connection, long long count, long long size):
        """Add to the stored patterns of a connection and of the user; *size* in bytes."""
        charge_patterns(&(<ConnectionUsage>self.connections[connection]).charge, count, size)


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


cdef bint have_same_groups(tuple credentials, tuple before) except -1:
    """Return whether two credentials of a user have the same gid and groups."""
    return credentials[GID] == before[GID] and (credentials[GROUPS] is before[GROUPS] or credentials[GROUPS] == before[GROUPS])


cdef class UsageTable:
    """The usage of all users of one bus. *capacity* is the number of descriptors for all users.

    *shared_capacity* is that for all but owners, *separator* that of keys; *clock* counts seconds. `sbusd.broker.quotas.UserQuotas` supplies the methods that find limits and refuse requests.
    """

    def __init__(self, capacity, shared_capacity, bytes separator, clock):
        self.present = {}
        self.absent = AbsentUsers()
        self.totals = TotalsTable()
        self.by_connection = {}
        self.capacity = capacity
        self.shared_capacity = shared_capacity
        self.subordinates = None
        self.separator = separator
        self.separator_byte = separator[0]
        self.clock = clock
        self.is_monotonic = clock is time.monotonic

    def forget_unchanged(self):
        """Forget what was determined about a user without a connection: the settings have changed."""
        self.unchanged = None

    # Subclasses are Python classes: a cpdef method would look for an override in each call.

    def now(self):
        """Return the time, in seconds."""
        return self.time()

    cdef double time(self) except? -1.0:
        """Return the time, in seconds."""
        return monotonic() if self.is_monotonic else self.clock()

    cdef UserUsage user_of(self, connection):
        """Return the user of a connection. Raises KeyError if there is no such connection."""
        return <UserUsage>self.by_connection[connection]

    def admit(self, connection, credentials):
        """Charge a new connection to its user and return None, or return the refusal. A refused connection counts only as an attempt."""
        return self.admit_client(connection, credentials)

    cdef object admit_client(self, connection, credentials):
        """The same as `admit`."""
        cdef double now = self.time()
        cdef UserUsage user
        cdef ConnectionUsage used
        own = credentials
        if self.subordinates is not None:
            credentials = self.charged_credentials(own)
        uid = (<tuple>credentials)[UID]
        found = self.present.get(uid)
        is_present = found is not None
        if not is_present:
            found = self.absent.users.pop(uid, None)
        if found is None:
            found = self.known_user(credentials, now)
        user = <UserUsage>found
        if not is_present:
            user.totals = self.totals.find(uid, self.present)
        before = user.credentials
        if have_same_groups(<tuple>credentials, <tuple>before):
            user.credentials = credentials
        else:
            self.update_limits(user, credentials, now)
        self.totals_of(user, own).credentials = own
        refusal = None
        if not take_token(&user.attempts.bucket, now):
            refusal = self.refuse_attempt(user, now)
        elif not self.has_descriptor(user):
            refusal = self.refuse_connection(user, now)
        else:
            used = user.add_connection(connection, (<tuple>own)[PID])
            used.charge.descriptors = 1
            user.charge.descriptors += 1
            self.descriptors += 1
            self.by_connection[connection] = user
        if not is_present:
            self.update_presence(user, now)
        return refusal

    cdef UserTotals totals_of(self, UserUsage user, credentials):
        """Return the totals of a client's user, which are those of *user* unless that is charged for another one."""
        uid = (<tuple>credentials)[UID]
        return user.totals if uid == (<tuple>user.credentials)[UID] else self.totals.find(uid, self.present)

    cdef UserUsage known_user(self, credentials, double now):
        """Return a user that has used nothing yet. Most often it is the one that has just left, as short commands do."""
        cdef UserUsage user = self.unchanged
        self.unchanged = None
        if user is None or (<tuple>user.credentials)[UID] != (<tuple>credentials)[UID]:
            return self.new_user(credentials, now)
        return user

    cdef bint has_descriptor(self, UserUsage user) noexcept:
        """Return whether a user may use one more descriptor, by the same rule as `UserQuotas._descriptor_limit_of`, but without Python."""
        if user.charge.descriptors >= user.charge.max_descriptors:
            return False
        return user.is_owner or user.charge.descriptors < max(<long long>0, self.free_half(user))

    def half_of_free(self, UserUsage user):
        """Return half of the descriptors that other users leave free, of those that are not reserved for owners and for restarts."""
        return self.free_half(user)

    cdef long long free_half(self, UserUsage user) noexcept:
        """The same as `half_of_free`."""
        return (self.shared_capacity - (self.descriptors - user.charge.descriptors)) // 2

    def leave(self, connection):
        """Release all that a connection used. A connection that was not admitted used nothing."""
        self.leave_user(connection)

    cdef int leave_user(self, connection) except -1:
        """The same as `leave`."""
        cdef UserUsage user
        cdef ConnectionUsage used
        found = self.by_connection.pop(connection, None)
        if found is None:
            return 0
        user = <UserUsage>found
        used = <ConnectionUsage>user.connections.pop(connection)
        user.charge.descriptors -= used.charge.descriptors
        self.descriptors -= used.charge.descriptors
        charge_patterns(&used.charge, -used.charge.subscriptions, -used.charge.pattern_bytes)
        if not user.connections:
            del self.present[(<tuple>user.credentials)[UID]]
            self.update_presence(user, self.time())
        return 0

    def charge_control(self, connection):
        """Charge a control packet and return None, or return the refusal."""
        return self.charge_packet(connection)

    cdef object charge_packet(self, connection):
        """The same as `charge_control`."""
        cdef UserUsage user = self.user_of(connection)
        cdef ConnectionUsage used = <ConnectionUsage>user.connections[connection]
        cdef double now = self.time()
        used.charge.control_packets += 1
        return None if take_token(user.charge.control, now) else self.refuse_control(user, used, now)

    def charge_subscription(self, connection, bytes pattern):
        """Charge one more stored instance of *pattern* and return None, or return the refusal."""
        return self.charge_pattern(connection, pattern)

    cdef object charge_pattern(self, connection, bytes pattern):
        """The same as `charge_subscription`."""
        cdef UserUsage user = self.user_of(connection)
        if self.take_subscription(&(<ConnectionUsage>user.connections[connection]).charge, pattern, len(pattern)):
            return None
        if user.charge.subscriptions >= user.charge.max_subscriptions:
            return self.refuse_subscription(user, user.charge.subscriptions, user.charge.max_subscriptions)
        return self.refuse_pattern(user, user.charge.pattern_bytes, user.charge.max_pattern_bytes)

    def release_subscription(self, connection, bytes pattern):
        """Release one stored instance of *pattern*."""
        self.release_pattern(connection, pattern)

    cdef int release_pattern(self, connection, bytes pattern) except -1:
        """The same as `release_subscription`."""
        self.user_of(connection).add_patterns(connection, -1, -self.memory_for(pattern, len(pattern)))
        return 0

    def memory_of(self, bytes pattern):
        """Return the charge of one stored instance of *pattern*, in bytes of memory."""
        return self.memory_for(pattern, len(pattern))

    cdef long long memory_for(self, const char* pattern, size_t length) noexcept nogil:
        """Return the same for a pattern of *length* bytes."""
        cdef long long segments = 0
        cdef const char* rest = pattern
        while rest is not NULL:
            segments += 1
            rest = <const char*>memchr(rest, self.separator_byte, length - (rest - pattern))
            rest = NULL if rest is NULL else rest + 1
        cdef long long size = _MEMBER_BYTES if memchr(pattern, 0, length) is not NULL else 0
        return size + _PATTERN_COPIES * <long long>length + _SEGMENT_BYTES * segments + _PATTERN_BYTES

    cdef bint take_control(self, Charge* charge, double now) noexcept nogil:
        """Charge a control packet and return True, or return False: then `charge_control` decides. *now*: of the monotonic clock."""
        if not self.is_monotonic or not take_token(charge.user.control, now):
            return False
        charge.control_packets += 1
        return True

    cdef bint take_subscription(self, Charge* charge, const char* pattern, size_t length) noexcept nogil:
        """Charge one more stored instance of a pattern and return True, or return False if it is beyond a quota."""
        if not self.may_subscribe(charge, pattern, length):
            return False
        charge_patterns(charge, 1, self.memory_for(pattern, length))
        return True

    cdef bint may_subscribe(self, Charge* charge, const char* pattern, size_t length) noexcept nogil:
        """Return whether one more stored instance of a pattern is within the quotas."""
        if charge.user.subscriptions >= charge.user.max_subscriptions:
            return False
        return charge.user.pattern_bytes + self.memory_for(pattern, length) <= charge.user.max_pattern_bytes

    cdef int update_presence(self, UserUsage user, double now) except -1:
        """Put a user into the table of present users if it has a connection, otherwise into that of absent users."""
        if user.connections:
            self.present[(<tuple>user.credentials)[UID]] = user
        elif user.is_as_new(now):
            self.unchanged = user
        else:
            self.absent.keep(user, now)
        return 0
