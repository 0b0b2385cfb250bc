# cython: language_level=3
"""What each user has done since the bus started, with the connections that have ended. Spec: sbus-protocol(7) §6, ``!/bus/totals``.

Compiled, because each connection that ends is counted here. A user can have connections of many user ids, see subuid(5), so the table is
bounded: such ids are forgotten before users with an account. Of both, the one with the fewest packets and refusals is forgotten first, and
its totals are added to those of other users.
"""

from sbusd.dataplane.counters import UserTraffic

MAX_USERS = 512
"""Maximum number of users in the table, a few hundred bytes each."""


cdef class UserTotals:
    """The totals of one user: of its connections that have ended, and its refusals. ``refused`` has the number for each quota, by name.

    ``credentials`` are those of its latest connection, None if it has had none since the bus started.
    """

    def __init__(self):
        self.refused = {}

    @property
    def traffic(self):
        """What the connections that have ended have done."""
        return UserTraffic(**self.ended)

    cpdef add_traffic(self, traffic):
        """Add what connections have done."""
        (
            received_packets, received_bytes, delivered_packets, delivered_bytes, lost_packets, refused_packets, replaced_packets,
            blocked_ms, blocked_others_ms,
        ) = traffic
        self.ended.received_packets += <unsigned long long>received_packets
        self.ended.received_bytes += <unsigned long long>received_bytes
        self.ended.delivered_packets += <unsigned long long>delivered_packets
        self.ended.delivered_bytes += <unsigned long long>delivered_bytes
        self.ended.lost_packets += <unsigned long long>lost_packets
        self.ended.refused_packets += <unsigned long long>refused_packets
        self.ended.replaced_packets += <unsigned long long>replaced_packets
        self.ended.blocked_ms += <unsigned long long>blocked_ms
        self.ended.blocked_others_ms += <unsigned long long>blocked_others_ms

    cpdef add_refusals(self, quota, long long count):
        """Add refusals because of the quota of this name."""
        self.refused[quota] = self.refused.get(quota, 0) + count
        self.refusals += <unsigned long long>count


cdef class TotalsTable:
    """The totals of all users of one bus. ``other`` has those of forgotten users, and ``forgotten`` is their number.

    ``subordinates`` are the ids that users have for their containers, None if there are none. Another thread may set it.
    """

    def __init__(self):
        self.by_uid = {}
        self.subordinates = self.marked = None
        self.other = UserTotals()
        self.forgotten = 0

    def of(self, uid, present):
        """Return the totals of a user. New ones need room, which users that are not *present* give; else they are those of others."""
        return self.find(uid, present)

    cdef UserTotals find(self, uid, dict present):
        """The same as `of`."""
        found = self.by_uid.get(uid)
        if found is None:
            if len(self.by_uid) >= MAX_USERS and not self.forget_one(present):
                return self.other
            found = self.by_uid[uid] = UserTotals()
            (<UserTotals>found).is_subordinate = self.marked is not None and uid in self.marked
        return <UserTotals>found

    def restore(self, uid, traffic, refused):
        """Add the totals of a user before a restart; *uid* is None for those of other users."""
        cdef UserTotals totals = self.other if uid is None else self.find(uid, {})
        totals.add_traffic(traffic)
        for quota, count in refused.items():
            totals.add_refusals(quota, count)

    cdef bint forget_one(self, dict present) except -1:
        """Forget the user that is not *present*, with the fewest packets and refusals, and return whether there is one.

        Subordinate ids are forgotten first: with many ids, one user could have all others forgotten.
        """
        cdef UserTotals each, least = None
        least_uid = None
        self.mark()
        for uid, found in self.by_uid.items():
            each = <UserTotals>found
            if uid not in present and (least is None or is_before(each, least)):
                least_uid, least = uid, each
        if least is None:
            return False
        self.restore(None, least.traffic, least.refused)
        del self.by_uid[least_uid]
        self.forgotten += 1
        return True


    cdef int mark(self) except -1:
        """Mark the subordinate ids in the table, if others are known than the last time."""
        subordinates = self.subordinates
        if subordinates is self.marked:
            return 0
        self.marked = subordinates
        for uid, found in self.by_uid.items():
            (<UserTotals>found).is_subordinate = subordinates is not None and uid in subordinates
        return 0


cdef inline bint is_before(UserTotals each, UserTotals other) noexcept:
    """Return whether *each* is forgotten before *other*."""
    if each.is_subordinate != other.is_subordinate:
        return each.is_subordinate
    return amount(each) < amount(other)


cdef inline unsigned long long amount(UserTotals totals) noexcept:
    """Return how much there is to forget about a user: its packets, and its refusals, which can be all that it has."""
    return totals.ended.received_packets + totals.ended.delivered_packets + totals.refusals
