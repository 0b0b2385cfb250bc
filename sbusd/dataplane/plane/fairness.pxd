# How connections and users share the time of the event loop. Plain arithmetic: the caller passes the time. See fairness.pxi.

from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef enum:
    TURN_SHARES = 4             # of turn_time: after that, a turn serves no user a second time
    THROTTLED_TURNS = 1         # of turn_time, for throttled connections while all others are idle: others may become ready meanwhile
    ROUTING_TURNS = 10          # of turn_time: the estimated time after which the rest of a batch waits for the next turn
    COMPANY_NS = 100000000      # another user that was served so recently can still be delayed
    MAX_ABSENT = 256            # users without a connection whose times are kept, each for a second at most


cdef struct UserTime:           # what all connections of one user have taken
    uint64_t number             # of the user, the same each time it comes; 0: unknown
    uint64_t readable_turn      # the last turn in which one of them was readable
    uint32_t readable           # how many of them were readable in that turn
    uint64_t served_turn        # the last turn in which a packet of theirs was handled
    int64_t owes_until          # nanoseconds of the monotonic clock; then, its own costs until now will not count any more
    int64_t throttled_until     # nanoseconds of the monotonic clock; until then, other users go first


cdef struct ConnectionTime:     # what one connection has taken
    uint32_t batch_limit        # packets handled in one turn
    int64_t throttled_until     # nanoseconds of the monotonic clock; until then, other connections go first
    bint is_costly              # its last batch took too long because of what its packets are, not because of how many they were


cdef struct Cost:               # of one batch; times in nanoseconds. Deliveries are not counted: larger batches make them cheaper
    size_t count                # packets
    int64_t patterns            # visiting patterns, which other users may have stored
    int64_t own                 # the packets' bytes and the time in the control plane, which only the publisher chose
    int64_t routing             # the estimate for routing
    bint is_cut_off             # routing ended before the last packet


cdef struct Schedule:
    uint64_t turn               # the number of this turn
    int64_t now                 # nanoseconds: when the last piece of work ended
    int64_t turn_time           # nanoseconds that one connection may take before it is throttled
    uint32_t batch_packets      # the largest batch
    uint32_t users_readable     # users with a readable connection in this turn
    uint64_t served             # the number of the user that was served last
    int64_t served_at           # when that was
    int64_t other_at            # when a user other than that one was served last
    bint is_cut_short           # the last turn was too long to serve every connection that was ready
    uint32_t absent_count
    UserTime absent[MAX_ABSENT] # of users without a connection, which would otherwise reconnect to be free of them
