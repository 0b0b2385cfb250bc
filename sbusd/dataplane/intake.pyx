# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# distutils: language = c++
"""What a connection has sent, on its way to be handled: single packets, and what is in batches. Spec: sbus-protocol(7) §6, ``!/batch``.

A batch is taken apart where it was received, a bounded number of packets at a time. What is then left of it, and of what was read from
the socket together with it, is kept as the connection's backlog, and goes on before the socket is read again. What was taken and could
not be handled in time is put back in front of that: backlogs are a chain.
"""

from libc.stdint cimport uint32_t
from libc.stdlib cimport malloc
from libc.string cimport memcmp, memcpy

from sbusd.dataplane.libc cimport le32toh

cdef const char* BATCH_HEAD = b"CMSG !/batch\0"


cdef bint is_batch(const char* packet, size_t length) noexcept nogil:
    """Return whether a packet says that it is a batch, well-formed or not."""
    return length >= BATCH_HEAD_BYTES - 1 and memcmp(packet, BATCH_HEAD, min(length, <size_t>BATCH_HEAD_BYTES)) == 0


cdef void add(Intake* intake, char* packet, size_t length, bint is_cut) noexcept nogil:
    """Take one packet as it is."""
    intake.parts[intake.count].iov_base = packet
    intake.parts[intake.count].iov_len = length
    intake.is_cut[intake.count] = is_cut
    intake.count += 1


cdef bint take(Intake* intake, char* packet, size_t length, bint is_cut) noexcept nogil:
    """Take a packet, or what is in a batch from the intake's *offset* on; return False if something is left of it, from *offset* on."""
    if is_cut or length < BATCH_HEAD_BYTES or packet[0] != c"C" or not is_batch(packet, length):
        add(intake, packet, length, is_cut)
        return True
    return take_apart(intake, packet, length)


cdef bint take_apart(Intake* intake, char* batch, size_t length) noexcept nogil:
    """Take what is in a batch.

    A fault is for the control plane: it gets a batch that begins with it. That is written over packets in front of the fault, so
    those are handled first, and the fault next time.
    """
    cdef size_t start = max(intake.offset, <size_t>BATCH_HEAD_BYTES), place = start
    cdef uint32_t inner
    while intake.count < intake.limit:
        if place == length and place > BATCH_HEAD_BYTES:
            break
        inner = 0
        if length - place >= BATCH_LENGTH_BYTES:
            memcpy(&inner, batch + place, BATCH_LENGTH_BYTES)
            inner = le32toh(inner)
        if inner == 0 or inner > length - place - BATCH_LENGTH_BYTES or is_batch(batch + place + BATCH_LENGTH_BYTES, inner):
            if place != start:
                break
            memcpy(batch + place - BATCH_HEAD_BYTES, BATCH_HEAD, BATCH_HEAD_BYTES)
            add(intake, batch + place - BATCH_HEAD_BYTES, length - place + BATCH_HEAD_BYTES, False)
            place = length
            break
        add(intake, batch + place + BATCH_LENGTH_BYTES, inner, False)
        place += BATCH_LENGTH_BYTES + inner
    if place != length:
        intake.offset = place
        return False
    intake.offset = 0
    intake.batches += 1
    return True


cdef size_t record_bytes(const char* packet, size_t length, size_t offset) noexcept nogil:
    """Return what a packet takes in a backlog, if it is a batch that is taken apart as far as *offset*."""
    return sizeof(Record) + (length if offset == 0 else BATCH_HEAD_BYTES + length - offset)


cdef Backlog* new_backlog(size_t size) noexcept nogil:
    """Return an empty backlog for records of *size* bytes together, or NULL if memory is short; free(3) ends it."""
    cdef Backlog* backlog = <Backlog*>malloc(sizeof(Backlog) + size)
    if backlog is not NULL:
        backlog.next = NULL
        backlog.size = size
        backlog.place = backlog.offset = 0
    return backlog


cdef void store(Backlog* backlog, const char* packet, size_t length, bint is_cut, size_t offset) noexcept nogil:
    """Write a record behind those that are there: of a batch that is taken apart as far as *offset*, a batch of the rest."""
    cdef char* place = <char*>backlog + sizeof(Backlog) + backlog.place
    cdef Record record
    record.length = record_bytes(packet, length, offset) - sizeof(Record)
    record.is_cut = is_cut
    memcpy(place, &record, sizeof(Record))
    place += sizeof(Record)
    if offset:
        memcpy(place, BATCH_HEAD, BATCH_HEAD_BYTES)
        place += BATCH_HEAD_BYTES
    memcpy(place, packet + offset, length - offset)
    backlog.place += sizeof(Record) + record.length


cdef Backlog* put_back(Intake* intake, size_t first, Backlog* following) noexcept nogil:
    """Return a backlog of the packets from *first* on, in front of *following*; NULL if memory is short."""
    cdef size_t i, size = 0
    cdef Backlog* backlog
    for i in range(first, intake.count):
        size += sizeof(Record) + intake.parts[i].iov_len
    backlog = new_backlog(size)
    if backlog is NULL:
        return NULL
    for i in range(first, intake.count):
        # A batch that was taken as one packet has a fault, and will be taken as one again.
        intake.batches -= not intake.is_cut[i] and is_batch(<char*>intake.parts[i].iov_base, intake.parts[i].iov_len)
        store(backlog, <char*>intake.parts[i].iov_base, intake.parts[i].iov_len, intake.is_cut[i], 0)
    backlog.place = 0
    backlog.next = following
    return backlog


cdef void resume(Backlog* backlog, Intake* intake) noexcept nogil:
    """Take what comes next of a chain of backlogs; the *place* of each of which that was all is then its *size*."""
    cdef Record record
    cdef char* place
    while backlog is not NULL and intake.count < intake.limit:
        if backlog.place == backlog.size:
            backlog = backlog.next
            continue
        place = <char*>backlog + sizeof(Backlog) + backlog.place
        memcpy(&record, place, sizeof(Record))
        intake.offset = backlog.offset
        if not take(intake, place + sizeof(Record), record.length, record.is_cut):
            backlog.offset = intake.offset
            return
        backlog.offset = 0
        backlog.place += sizeof(Record) + record.length


cdef list packets_of(Backlog* backlog):
    """Return the packets of a chain of backlogs, each with whether the kernel cut it; of a batch that is being taken apart, a batch of the
    rest."""
    cdef Record record
    cdef size_t at, offset
    cdef char* packet
    found = []
    while backlog is not NULL:
        at, offset = backlog.place, backlog.offset
        while at < backlog.size:
            memcpy(&record, <char*>backlog + sizeof(Backlog) + at, sizeof(Record))
            packet = <char*>backlog + sizeof(Backlog) + at + sizeof(Record)
            rest = packet[offset:record.length]
            found.append((BATCH_HEAD[:<size_t>BATCH_HEAD_BYTES] + rest if offset else rest, bool(record.is_cut)))
            at += sizeof(Record) + record.length
            offset = 0
        backlog = backlog.next
    return found
