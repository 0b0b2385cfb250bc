"""How packets come from a stream socket: frames, each the length of a packet (32 bits, little endian) and the packet.

One recv(2) may return many frames, and the beginning of one. What exceeds the limit of the turn becomes the connection's backlog. The
beginning of a frame is kept until its end comes: a short one in a small block, which each connection may have. A long one gets memory for
all of the frame, of which the connections of a user together may have HALF_READ_BYTES. A connection that needs more waits. It never waits
once its frame has memory, so frames whose ends come make room for others. Spec: sbus-protocol(7) §1, "Frames".
"""

from libc.errno cimport EAGAIN
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from sbusd.dataplane.ancillary cimport REFUSED, receive_checked_bytes
from sbusd.dataplane.libc cimport MSG_DONTWAIT, le32toh, recv, set_errno

from sbusd.dataplane.contract import UNREAD_BYTES
from sbus.protocol.packets import MAX_PACKET_BYTES

cdef enum:
    LARGE_BYTES = 65536         # packets of this size make it worth giving the buffer's pages back
    UNIT_BYTES = 1024           # `reads` counts these; 64 KiB at most are read at once
    BEGINNING_BYTES = 4096      # of the beginning of a frame that every connection may have

cdef uint32_t MOST_BYTES = MAX_PACKET_BYTES
cdef size_t HALF_READ_BYTES = UNREAD_BYTES


cdef char* bytes_of(HalfFrame* half) noexcept nogil:
    """Return where the bytes of the beginning of a frame are."""
    return <char*>half + sizeof(HalfFrame)


cdef uint32_t length_at(const char* frame) noexcept nogil:
    """Return the length of the packet in a frame."""
    cdef uint32_t word
    memcpy(&word, frame, sizeof(word))
    return le32toh(word)


cdef bint is_wrong(uint32_t length) noexcept nogil:
    """Return whether no packet can have this length."""
    return length == 0 or length > MOST_BYTES


cdef size_t needed_for(const char* data, size_t filled) noexcept nogil:
    """Return the memory for a frame that begins with *data*."""
    if filled < LENGTH_BYTES or is_wrong(length_at(data)):
        return BEGINNING_BYTES
    return max(<size_t>BEGINNING_BYTES, LENGTH_BYTES + <size_t>length_at(data))


cdef bint is_at_half_read_limit(Connection* connection) noexcept nogil:
    """Return whether no other frame of the connection's user gets memory."""
    return connection.out.account is not NULL and connection.out.account.half_read >= HALF_READ_BYTES


cdef bint awaits_memory(Connection* connection) noexcept nogil:
    """Return whether a stream connection cannot be read before others of its user have received the ends of their frames."""
    cdef HalfFrame* half = connection.reading.half
    return half is not NULL and half.size == BEGINNING_BYTES and half.filled == BEGINNING_BYTES and is_at_half_read_limit(connection)


cdef void drop_half(Connection* connection) noexcept nogil:
    """Release the beginning of a frame, if there is one."""
    cdef HalfFrame* half = connection.reading.half
    if half is not NULL:
        if half.size > BEGINNING_BYTES:
            count_half(connection, -<int64_t>half.size)
        free(half)
        connection.reading.half = NULL


cdef void count_half(Connection* connection, int64_t size) noexcept nogil:
    """Count *size* more bytes of memory for a long frame; less if it is negative."""
    connection.out.totals.half_read_bytes += size
    if connection.out.account is not NULL:
        connection.out.account.half_read += size


cdef bint keep_half(Connection* connection, const char* data, size_t length) noexcept nogil:
    """Keep the beginning of a frame, which may be in the memory of the present one. Return False if memory is short."""
    cdef size_t size = needed_for(data, length)
    cdef HalfFrame* half = connection.reading.half
    if length <= BEGINNING_BYTES and size > BEGINNING_BYTES and is_at_half_read_limit(connection):
        size = BEGINNING_BYTES
    size = max(size, length)
    if half is NULL or half.size != size:
        half = <HalfFrame*>malloc(sizeof(HalfFrame) + size)
        if half is NULL:
            return False
        half.size = size
    half.filled = length
    if bytes_of(half) != data:
        memcpy(bytes_of(half), data, length)
    if half != connection.reading.half:
        drop_half(connection)
        connection.reading.half = half
        if size > BEGINNING_BYTES:
            count_half(connection, size)
    return True


cdef bint restore_half(Connection* connection, const char* data, size_t length) noexcept nogil:
    """Keep the beginning of a frame that another process has received. Return False if memory is short."""
    connection.reading.has_fault = length >= LENGTH_BYTES and is_wrong(length_at(data))
    return keep_half(connection, data, length)


cdef ssize_t receive_frames(Plane plane, Connection* connection) noexcept nogil:
    """Take the next packets of a stream into the plane's intake; those that exceed its limit become the backlog.

    Returns how many bytes came, 0 at the end of the stream, -1 with errno set as recv(2) does, and -2 if memory is short.
    """
    cdef HalfFrame* half = connection.reading.half
    cdef char* buffer = <char*>plane.rooms[0].iov_base
    cdef size_t filled = 0 if half is NULL else half.filled, size
    cdef ssize_t count
    if half is not NULL and half.size == BEGINNING_BYTES and needed_for(bytes_of(half), filled) > BEGINNING_BYTES:
        if not keep_half(connection, bytes_of(half), filled):
            return -2
        half = connection.reading.half
    if half is not NULL and half.size > BEGINNING_BYTES:
        return receive_end(plane, connection, half, buffer)
    size = min(connection.reading.reads, <uint32_t>BATCH_PACKETS) * UNIT_BYTES
    if is_at_half_read_limit(connection):
        size = min(size, BEGINNING_BYTES - filled)
    if half is not NULL:
        memcpy(buffer, bytes_of(half), filled)
    count = receive_bytes(connection, buffer + filled, size)
    if count <= 0:
        return count
    if filled + count >= LARGE_BYTES:
        plane.is_buffer_large = True
    if not take_frames(plane, connection, buffer, filled + count):
        return -2
    if connection.reading.backlog is NULL and <size_t>count == size:
        connection.reading.reads = min(connection.reading.reads * 2, <uint32_t>BATCH_PACKETS)
    return count


cdef ssize_t receive_bytes(Connection* connection, char* room, size_t size) noexcept nogil:
    """Receive at most *size* bytes. Returns what recv(2) does."""
    if size == 0:
        set_errno(EAGAIN)
        return -1
    if connection.reading.passing == REFUSED:
        return recv(connection.out.fd, room, size, MSG_DONTWAIT)
    return receive_checked_bytes(connection.out.fd, room, size, &connection.reading.passing, &connection.reading.has_descriptors)


cdef ssize_t receive_end(Plane plane, Connection* connection, HalfFrame* half, char* buffer) noexcept nogil:
    """Receive more of a long frame, and take its packet if it is complete. Returns what `receive_frames` does."""
    cdef ssize_t count = receive_bytes(connection, bytes_of(half) + half.filled, half.size - half.filled)
    if count <= 0:
        return count
    half.filled += count
    if half.filled == half.size:
        # The packet must stay where it is until it is delivered, and with room for its length before it.
        memcpy(buffer, bytes_of(half), half.size)
        plane.is_buffer_large = True
        if not take_frames(plane, connection, buffer, half.size):
            return -2
    return count


cdef bint take_frames(Plane plane, Connection* connection, char* buffer, size_t length) noexcept nogil:
    """Take the packets of complete frames, and keep the rest. Return False if memory is short."""
    cdef size_t place = 0, kept_from = 0, offset = 0, size = 0
    cdef bint is_over = False
    cdef uint32_t inner
    while length - place >= LENGTH_BYTES:
        inner = length_at(buffer + place)
        if is_wrong(inner):
            connection.reading.has_fault = True
            length = place + LENGTH_BYTES     # what follows has no meaning
            break
        if inner > length - place - LENGTH_BYTES:
            break
        if not is_over and (plane.intake.count == plane.intake.limit
                or not take(&plane.intake, buffer + place + LENGTH_BYTES, inner, False)):
            is_over = True
            kept_from, offset = place, plane.intake.offset
            size = record_bytes(buffer + place + LENGTH_BYTES, inner, offset)
        elif is_over:
            size += record_bytes(buffer + place + LENGTH_BYTES, inner, 0)
        place += LENGTH_BYTES + inner
    if is_over:
        connection.reading.reads = max(<uint32_t>1, <uint32_t>(kept_from // UNIT_BYTES))
        if not keep_frames(connection, buffer + kept_from, place - kept_from, offset, size):
            return False
    if place == length:
        drop_half(connection)
        return True
    return keep_half(connection, buffer + place, length - place)


cdef bint keep_frames(Connection* connection, char* frames, size_t length, size_t offset, size_t size) noexcept nogil:
    """Keep the packets of complete frames in a backlog of *size* bytes; the first is a batch that is split up to *offset*, if not 0."""
    cdef Backlog* backlog = new_backlog(size)
    cdef size_t place = 0
    if backlog is NULL:
        return False
    while place < length:
        store(backlog, frames + place + LENGTH_BYTES, length_at(frames + place), False, offset)
        offset = 0
        place += LENGTH_BYTES + length_at(frames + place)
    connection.reading.backlog = backlog
    return True
