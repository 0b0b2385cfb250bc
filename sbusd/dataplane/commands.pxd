# What the control plane changes of a connection. See commands.pxi.

from libc.stdint cimport uint32_t, uint64_t


cdef int set_user(Plane plane, Connection* connection, uint32_t uid, uint32_t charged) except -1
cdef void set_rights(Connection* connection, bint blocks_others, uint64_t rules, int sight, bint may_vouch, bint may_deliver) noexcept nogil
cdef void set_cred(Connection* connection, const char* cred, size_t length) noexcept nogil
cdef void add_pattern(Plane plane, Connection* connection, const char* pattern, size_t length) noexcept nogil
cdef void send_packet(Plane plane, Connection* connection, const char* packet, size_t length) noexcept nogil
cdef void hold_reading(Plane plane, Connection* connection) noexcept nogil
cdef void resume_reading(Plane plane, Connection* connection) noexcept nogil
