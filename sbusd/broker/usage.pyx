# cython: language_level=3
"""What each user holds and uses up: what each connect, control packet, subscription and end of a connection counts.

It is compiled because a client that stays for one question costs the bus little else. Only what is within the quotas is done here: what is
beyond them, and all words about it, are the matter of `sbusd.broker.quotas`. Spec: sbusd.toml(5), [quotas].
"""

from sbusd.dataplane.libc cimport CLOCK_MONOTONIC, clock_gettime, timespec

import time
from collections import Counter

from sbusd.state.records import STORED_BYTES

MAX_ABSENT = 4_096
"""Users without a connection that are kept, a kilobyte each."""

SEGMENT_BYTES = 240
"""Memory that a segment of a pattern takes in the switch at most, measured; the bytes of the pattern are there twice besides.

That much it takes where another pattern has, or had, the same segments in front; a segment of which there is one takes its bytes alone.
Without it a megabyte of separators would cost the bus a quarter of a gigabyte, for the price of a megabyte.
"""

IMAGES = 2
"""How often a pattern is in the kept state at most: in the log, and in the next one while that is written."""

PATTERN_BYTES = 120 + IMAGES * STORED_BYTES
"""What a pattern takes in addition: at most 120 in the switch, measured, and the heads of its records in the kept state."""

cdef long long _SEGMENT_BYTES = SEGMENT_BYTES
cdef long long _PATTERN_BYTES = PATTERN_BYTES
cdef long long PATTERN_COPIES = 2 + IMAGES


cdef class Bucket:
    """Holds at most ``burst`` tokens, gains ``rate`` a second, and loses one for each thing that happens. Has no clock.

    ``tokens`` is what it held at the time ``since``, in seconds of a clock that never goes back.
    """

    def __init__(self, double rate, double burst, double tokens, double since):
        self.rate = rate
        self.burst = burst
        self.tokens = tokens
        self.since = since

    @classmethod
    def full(cls, rate, burst, now):
        """Return a bucket that holds all it can."""
        return cls(rate, burst, burst, now)

    cpdef bint take(self, double now):
        """Take a token and return True, or return False if there is none."""
        self.settle(now)
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True

    cpdef settle(self, double now):
        """Add what has come until *now*; a time before the last one adds nothing."""
        if now > self.since:
            self.tokens = min(self.burst, self.tokens + (now - self.since) * self.rate)
            self.since = now

    def resize(self, double rate, double burst, double now):
        """Have another rate and burst from *now* on. What has been used of the burst stays used."""
        cdef double used
        self.settle(now)
        used = self.burst - self.tokens
        self.rate = rate
        self.burst = burst
        self.tokens = max(0.0, burst - used)

    def full_at(self):
        """Return when it will hold all it can, if nothing is taken."""
        return self.since + (self.burst - self.tokens) / self.rate


cdef class Holding:
    """What one connection makes the bus hold: ``descriptors`` are its own and that of its process, if the bus watches that.

    ``patience`` is made with the first control packet that is refused.
    """

    def __init__(self, pid, descriptors=1, control_packets=0, patience=None):
        self.pid = pid
        self.descriptors = descriptors
        self.control_packets = control_packets
        self.patience = patience


cdef class Account:
    """One user: its quotas, and what all its connections together hold.

    ``credentials`` are those of its latest connection, by which its quotas were found; ``refused`` counts refusals by quota, since the bus
    knows the user.
    """

    def __init__(self, credentials, quotas, is_owner, control, attempts, tells):
        self.credentials = credentials
        self.quotas = quotas
        self.is_owner = is_owner
        self.control = control
        self.attempts = attempts
        self.tells = tells
        self.holdings = {}
        self.refused = Counter()

    @property
    def uid(self):
        """The user."""
        return self.credentials.uid

    cpdef bint is_settled(self, double now):
        """Return whether to forget the user would give it nothing."""
        return _is_full(self.control, now) and _is_full(self.attempts, now)


cdef bint _is_full(Bucket bucket, double now):
    """Return whether a bucket holds all it can at the time *now*."""
    return bucket.since + (bucket.burst - bucket.tokens) / bucket.rate <= now


cdef class Holdings:
    """The users of one bus whose keys have this *separator*, those who are there and those who left; *capacity* descriptors are for all.

    *clock* counts seconds. What is beyond a quota is for the methods of `sbusd.broker.quotas.Accounts`, which has the words.
    """

    def __init__(self, capacity, bytes separator, clock):
        self.present = {}
        # In the order in which they left.
        self.departed = {}
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

    cdef Account account_of(self, connection):
        """Return the account of a connection. Raises KeyError if there is none."""
        return <Account>self.by_connection[connection]

    cpdef admit(self, connection, credentials):
        """Charge a new connection to its user, or say why not; if it is not admitted, nothing is left of it but the attempt."""
        cdef double now = self.now()
        cdef Account account
        cdef Holding held
        uid = credentials.uid
        found = self.present.get(uid)
        is_present = found is not None
        if not is_present:
            found = self.departed.pop(uid, None)
        if found is None:
            found = self.open_account(credentials, now)
        account = <Account>found
        before = account.credentials
        if credentials.gid == before.gid and credentials.groups == before.groups:
            account.credentials = credentials
        else:
            self.assess(account, credentials, now)
        excess = None
        if not account.attempts.take(now):
            excess = self.refuse_attempt(account, now)
        elif not self.has_descriptor(account):
            excess = self.refuse_descriptor(account, now)
        else:
            held = Holding.__new__(Holding)
            held.pid = credentials.pid
            held.descriptors = 1
            account.holdings[connection] = held
            account.descriptors += 1
            self.descriptors += 1
            self.by_connection[connection] = account
        if not is_present:
            self.file(account, now)
        return excess

    cdef bint has_descriptor(self, Account account) except -1:
        """Return whether a user may have one more descriptor."""
        cdef long long quota = account.quotas.connections
        if account.descriptors >= quota:
            return False
        return account.is_owner or account.descriptors < max(<long long>0, self.half_of(account))

    cpdef long long half_of(self, Account account):
        """Return half of the descriptors that other users leave."""
        return (self.capacity - (self.descriptors - account.descriptors)) // 2

    cpdef leave(self, connection):
        """Give back all that a connection held; one that was not admitted held nothing."""
        cdef Account account
        cdef Holding held
        found = self.by_connection.pop(connection, None)
        if found is None:
            return
        account = <Account>found
        held = <Holding>account.holdings.pop(connection)
        account.descriptors -= held.descriptors
        account.subscriptions -= held.subscriptions
        account.pattern_bytes -= held.pattern_bytes
        self.descriptors -= held.descriptors
        if not account.holdings:
            del self.present[account.credentials.uid]
            self.file(account, self.now())

    cpdef charge_control(self, connection):
        """Charge a control packet, or say why it is not to be handled."""
        cdef Account account = self.account_of(connection)
        cdef Holding held = <Holding>account.holdings[connection]
        cdef double now = self.now()
        held.control_packets += 1
        return None if account.control.take(now) else self.refuse_control(account, held, now)

    cpdef charge_subscription(self, connection, bytes pattern):
        """Charge one more stored instance of *pattern*, or say why it is not to be stored."""
        cdef Account account = self.account_of(connection)
        cdef long long size = self.memory_of(pattern), limit = account.quotas.subscriptions
        if account.subscriptions >= limit:
            return self.refuse_subscription(account, account.subscriptions, limit)
        limit = account.quotas.pattern_bytes
        if account.pattern_bytes + size > limit:
            return self.refuse_pattern(account, account.pattern_bytes, limit)
        self.hold_pattern(account, connection, 1, size)
        return None

    cpdef release_subscription(self, connection, bytes pattern):
        """Give back one stored instance of *pattern*."""
        self.hold_pattern(self.account_of(connection), connection, -1, -self.memory_of(pattern))

    cpdef hold_pattern(self, Account account, connection, long long count, long long size):
        """Add to what a connection and its user hold of patterns."""
        cdef Holding held = <Holding>account.holdings[connection]
        held.subscriptions += count
        held.pattern_bytes += size
        account.subscriptions += count
        account.pattern_bytes += size

    cpdef long long memory_of(self, bytes pattern):
        """Return what a stored instance of *pattern* is charged, in bytes of the bus's memory."""
        cdef long long segments = pattern.count(self.separator) + 1
        return PATTERN_COPIES * <long long>len(pattern) + _SEGMENT_BYTES * segments + _PATTERN_BYTES

    # -- one user

    cpdef file(self, Account account, double now):
        """Put an account to those who are there, or to the absent if there is something to remember."""
        uid = account.credentials.uid
        if account.holdings:
            self.present[uid] = account
        elif not account.is_settled(now):
            self.departed[uid] = account
            self.forget_absent(now)

    cdef int forget_absent(self, double now) except -1:
        """Forget the longest absent: two that are settled for each that comes, so all are in time, and one too many in any case."""
        first = []
        for uid in self.departed:
            first.append(uid)
            if len(first) == 2:
                break
        for uid in first:
            if (<Account>self.departed[uid]).is_settled(now):
                del self.departed[uid]
        if <long long>len(self.departed) > <long long>MAX_ABSENT:
            del self.departed[next(iter(self.departed))]
            self.forgotten_early += 1
        return 0
