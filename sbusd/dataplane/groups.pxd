# Queue groups, of whose members one gets each message. See groups.pyx.

from libc.stdint cimport int64_t, uint32_t
from libcpp.string cimport string

from sbusd.dataplane.connection cimport Connection, Group, Member
from sbusd.dataplane.outbox cimport Account, Head
from sbusd.dataplane.plane cimport Plane
from sbusd.dataplane.router cimport Route


cdef void route_to(Plane plane, Connection* connection, const char* pattern, size_t length) noexcept nogil
cdef void stop_routing_to(Plane plane, Connection* connection, const char* pattern, size_t length) noexcept nogil
cdef bint may_join(Plane plane, Connection* connection, string name) noexcept nogil
cdef Connection* owner_of_slot(Plane plane, uint32_t slot) noexcept nogil
cdef bint has_stored(Plane plane, uint32_t slot, const char* pattern, size_t length) noexcept nogil
cdef void forget_user(Plane plane, Account* account) noexcept nogil
cdef void forget_members(Plane plane, Connection* connection) noexcept nogil
cdef void consider(Plane plane, Connection* sender, Member* member, uint32_t uid, size_t cost) noexcept nogil
cdef Connection* choose_loser(Group* group) noexcept nogil
cdef Connection* choose_member(Plane plane, Group* group, size_t length) noexcept nogil
cdef void choose_only(Plane plane, Member* member, size_t length) noexcept nogil
cdef void note_open_groups(Plane plane, Route found) noexcept nogil
cdef void miss_members(Plane plane, Route found, uint32_t index) noexcept nogil
cdef void offer_share(Plane plane, Connection* recipient, bint may_block, bint is_paced, Head* heads, size_t stride) noexcept nogil
cdef void pass_on_some(Plane plane, size_t most, int64_t end) noexcept nogil
