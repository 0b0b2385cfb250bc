"""How connections and users share the time of the event loop: rule 4 of `sbusd.dataplane.contract`.

Nothing here reads a clock, so tests choose the time.
"""

cdef enum:
    PENALTY = 4                 # a connection that took too long is throttled for this many times as long
    MAX_PENALTY_NS = 100000000
    MAX_USER_PENALTY_NS = 1000000000
    RECENT_NS = 1000000         # a user that was served so recently will soon be back, and a costly packet would delay it


cdef inline bint is_throttled(Schedule* schedule, ConnectionTime* connection, UserTime* user) noexcept nogil:
    """Return whether other connections, or other users, go before this one."""
    return connection.throttled_until > schedule.now or (user is not NULL and user.throttled_until > schedule.now)


cdef inline uint64_t number_of(UserTime* user) noexcept nogil:
    """Return the number of a user, which may be unknown: NULL."""
    return 0 if user is NULL else user.number


cdef inline int64_t since_other(Schedule* schedule, UserTime* user) noexcept nogil:
    """Return for how many nanoseconds no other user has been served."""
    return schedule.now - (schedule.other_at if number_of(user) == schedule.served else schedule.served_at)


cdef inline int64_t turn_end(Schedule* schedule) noexcept nogil:
    """Return when this turn, which begins now, stops serving users for a second time."""
    return schedule.now + TURN_SHARES * schedule.turn_time


cdef inline bint is_too_long(Schedule* schedule, int64_t routing) noexcept nogil:
    """Return whether the rest of a batch waits for the next turn because of the estimated time for routing."""
    return routing > ROUTING_TURNS * schedule.turn_time


cdef void begin_turn(Schedule* schedule) noexcept nogil:
    """Begin a turn, in which no connection is readable yet."""
    schedule.turn += 1
    schedule.users_readable = 0


cdef void note_readable(Schedule* schedule, UserTime* user) noexcept nogil:
    """Count a readable connection, whose user may be unknown: NULL."""
    if user is NULL:
        schedule.users_readable += 1
        return
    if user.readable_turn != schedule.turn:
        user.readable_turn = schedule.turn
        user.readable = 0
        schedule.users_readable += 1
    user.readable += 1


cdef bint must_stop(Schedule* schedule, UserTime* user, int64_t end) noexcept nogil:
    """Return whether a turn that should have ended at *end* has served the user already, and remember it if so.

    Connections of one user may use the loop together while other users are idle. A user that becomes ready must not wait for all of them.
    """
    if schedule.now <= end or user is NULL or user.served_turn != schedule.turn:
        return False
    schedule.is_cut_short = True
    return True


cdef bint is_held_back(Schedule* schedule, ConnectionTime* connection, UserTime* user) noexcept nogil:
    """Return whether a throttled connection is not served even though no other connection is ready.

    A packet cannot be interrupted. One that takes 200 microseconds, handled while another user works on its last response, delays
    that user by as much, again and again. Cheaper ones on the many connections of a throttled user delay it by as much together.
    """
    if user is NULL:
        return False
    if user.throttled_until <= schedule.now and not (connection.is_costly and connection.throttled_until > schedule.now):
        return False
    return since_other(schedule, user) < RECENT_NS


cdef uint32_t read_limit(Schedule* schedule, ConnectionTime* connection, UserTime* user) noexcept nogil:
    """Return how many packets to read from a connection. While several users are readable, the connections of one share a batch:
    otherwise the user with the most connections would have most of the bus."""
    if schedule.users_readable < 2 or user is NULL or user.readable_turn != schedule.turn:
        return connection.batch_limit
    return max(<uint32_t>1, min(connection.batch_limit, schedule.batch_packets // max(<uint32_t>1, user.readable)))


cdef void note_served(Schedule* schedule, UserTime* user) noexcept nogil:
    """Remember which user was served last, and when another one was."""
    if user is not NULL:
        user.served_turn = schedule.turn
    if number_of(user) != schedule.served:
        schedule.other_at = schedule.served_at
        schedule.served = number_of(user)
    schedule.served_at = schedule.now


cdef void assess(Schedule* schedule, ConnectionTime* connection, UserTime* user, Cost* cost, bint is_owner, int64_t now) noexcept nogil:
    """Account for a batch that ends *now*: read a costly connection in smaller batches, and throttle it after a long batch.

    *is_owner*: the user owns the bus, and could do worse to it anyway.
    """
    cdef int64_t total = cost.patterns + cost.own, taken = now - schedule.now
    cdef uint32_t limit = schedule.batch_packets
    schedule.now = now
    if cost.count and total > schedule.turn_time:
        limit = max(<uint32_t>1, <uint32_t>(<int64_t>cost.count * schedule.turn_time // total))
    if cost.is_cut_off and is_too_long(schedule, cost.routing):
        # What is put back is copied. A paced publisher that waits puts packets back too, but is not what takes long.
        limit = max(<uint32_t>1, min(limit, <uint32_t>cost.count))
    # It grows by doubling, so that a costly batch after a cheap one does not pay off.
    connection.batch_limit = min(limit, min(connection.batch_limit * 2, schedule.batch_packets))
    connection.throttled_until = 0
    connection.is_costly = total > schedule.turn_time
    if cost.count:
        note_served(schedule, user)
    if taken > schedule.turn_time:
        connection.throttled_until = now + min(taken * PENALTY, <int64_t>MAX_PENALTY_NS)
    if user is not NULL and not is_owner:
        charge_user(schedule, user, min(cost.own, taken), now)       # the estimate counts for no more than the time taken


cdef void charge_user(Schedule* schedule, UserTime* user, int64_t own, int64_t now) noexcept nogil:
    """Throttle a user when its own costs add up to more than turn_time: many connections, or batches, would otherwise have turn_time each.

    The sum goes down in the time that the user does not take, PENALTY times more slowly than it went up: less than a fifth of the loop
    does not add up.
    """
    cdef int64_t owed = max(<int64_t>0, user.owes_until + own - now) + own * PENALTY
    if owed <= schedule.turn_time * PENALTY:
        user.owes_until = now + owed
        return
    user.owes_until = 0         # being throttled makes up for all of it, so what a user did alone does not count for long
    user.throttled_until = max(user.throttled_until, now + min(owed, <int64_t>MAX_USER_PENALTY_NS))


cdef inline int64_t counts_until(UserTime* user) noexcept nogil:
    """Return until when it makes a difference what a user has taken."""
    return max(user.owes_until, user.throttled_until)


cdef void keep_absent(Schedule* schedule, UserTime* user) noexcept nogil:
    """Keep what a user has taken whose last connection has ended, while that counts. If they are too many, forget who has least left."""
    cdef UserTime* least = user
    cdef uint32_t i = 0
    while i < schedule.absent_count:
        if counts_until(&schedule.absent[i]) <= schedule.now:
            schedule.absent_count -= 1
            schedule.absent[i] = schedule.absent[schedule.absent_count]
            continue
        if counts_until(&schedule.absent[i]) < counts_until(least):
            least = &schedule.absent[i]
        i += 1
    if counts_until(user) <= schedule.now:
        return
    if schedule.absent_count < <uint32_t>MAX_ABSENT:
        schedule.absent[schedule.absent_count] = user[0]
        schedule.absent_count += 1
    else:
        least[0] = user[0]


cdef UserTime take_absent(Schedule* schedule, uint64_t number) noexcept nogil:
    """Return what a user has taken that has its first connection now."""
    cdef UserTime found = UserTime(number, 0, 0, 0, 0, 0)
    cdef uint32_t i
    for i in range(schedule.absent_count):
        if schedule.absent[i].number == number:
            found = schedule.absent[i]
            schedule.absent_count -= 1
            schedule.absent[i] = schedule.absent[schedule.absent_count]
            break
    return found


cdef enum:
    MODEL_PLACES = 512


cdef class ScheduleModel:
    """A schedule of 512 connections and 512 users without a switch: the functions above for tests. Times are in nanoseconds.

    The user None is one that the bus does not know.
    """

    cdef Schedule schedule
    cdef ConnectionTime connections[MODEL_PLACES]
    cdef UserTime users[MODEL_PLACES]

    def __init__(self, *, int64_t turn_time, uint32_t batch_packets):
        self.schedule.turn_time = turn_time
        self.schedule.batch_packets = batch_packets
        for i in range(MODEL_PLACES):
            self.connect(i)

    cdef UserTime* time_of(self, user) except? NULL:
        if user is None:
            return NULL
        if self.users[<int>user].number == 0:
            self.users[<int>user] = take_absent(&self.schedule, <int>user + 1)
        return &self.users[<int>user]

    def connect(self, int connection):
        """Begin with a new connection of this number."""
        self.connections[connection] = ConnectionTime(self.schedule.batch_packets, 0, False)

    def leave(self, int user):
        """End the last connection of a user, which may come again."""
        keep_absent(&self.schedule, self.time_of(user))
        self.users[user].number = 0

    def begin_turn(self, int64_t now, *, tuple readable=()):
        """Begin a turn in which a connection of each user in *readable* can be read."""
        self.schedule.now = now
        self.schedule.is_cut_short = False
        begin_turn(&self.schedule)
        for user in readable:
            note_readable(&self.schedule, self.time_of(user))

    def turn_end(self):
        """Return when this turn, which begins now, stops serving users for a second time."""
        return turn_end(&self.schedule)

    def read_limit(self, int connection, user):
        """Return how many packets are read from a connection."""
        return read_limit(&self.schedule, &self.connections[connection], self.time_of(user))

    def is_too_long(self, int64_t routing):
        """Return whether the rest of a batch waits for the next turn."""
        return is_too_long(&self.schedule, routing)

    def serve(self, int connection, user, *, int64_t now, size_t count=1, int64_t patterns=0, int64_t own=0, int64_t routing=0,
              bint is_cut_off=False, bint is_owner=False):
        """Account for a batch that ends *now*."""
        cdef Cost cost = Cost(count, patterns, own, routing, is_cut_off)
        assess(&self.schedule, &self.connections[connection], self.time_of(user), &cost, is_owner, now)

    def pass_time(self, int64_t now):
        """Let it be *now*."""
        self.schedule.now = now

    def is_throttled(self, int connection, user):
        """Return whether others go before a connection."""
        return is_throttled(&self.schedule, &self.connections[connection], self.time_of(user))

    def is_held_back(self, int connection, user):
        """Return whether a connection is not served even though no other one is ready."""
        return is_held_back(&self.schedule, &self.connections[connection], self.time_of(user))

    def must_stop(self, user, int64_t end):
        """Return whether a turn that should have ended at *end* serves the user no more."""
        return must_stop(&self.schedule, self.time_of(user), end)
