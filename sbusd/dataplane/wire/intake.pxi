"""From received packets to the packets to handle: batches are split. Spec: sbus-protocol(7) §6, ``!/batch``.

A batch is split where it was received, a bounded number of packets at a time. The rest of it, and packets that were read together with it,
become the connection's backlog, which is handled before the socket is read again. Packets that could not be handled in time are put back
before that: backlogs are a chain.
"""

from libc.stdint cimport uint32_t
from libc.stdlib cimport malloc
from libc.string cimport memcmp, memcpy

from sbusd.dataplane.libc cimport le32toh


cdef bint is_batch(const char* packet, size_t length) noexcept nogil:
    """Return whether a packet has the head of a batch; it may be malformed."""
    return length >= BATCH_HEAD_BYTES - 1 and memcmp(packet, BATCH_HEAD, min(length, <size_t>BATCH_HEAD_BYTES)) == 0


cdef void add(Intake* intake, char* packet, size_t length, bint is_cut) noexcept nogil:
    """Take one packet unchanged."""
    intake.parts[intake.count].iov_base = packet
    intake.parts[intake.count].iov_len = length
    intake.is_cut[intake.count] = is_cut
    intake.count += 1


cdef bint take(Intake* intake, char* packet, size_t length, bint is_cut) noexcept nogil:
    """Take a packet, or the packets of a batch from the intake's *offset* on. Return False if a rest is left from the new *offset* on."""
    if is_cut or length < BATCH_HEAD_BYTES or packet[0] != c"C" or not is_batch(packet, length):
        add(intake, packet, length, is_cut)
        return True
    return split_batch(intake, packet, length)


cdef bint split_batch(Intake* intake, char* batch, size_t length) noexcept nogil:
    """Take the packets of a batch.

    The control plane gets a batch that begins with the fault of a malformed one. Its head is written over the packets before the fault,
    so these are handled first, and the fault next time.
    """
    cdef size_t start = max(intake.offset, <size_t>BATCH_HEAD_BYTES), place = start
    cdef uint32_t inner
    while intake.count < intake.limit:
        if place == length and place > BATCH_HEAD_BYTES:
            break
        inner = 0
        if length - place >= LENGTH_BYTES:
            memcpy(&inner, batch + place, LENGTH_BYTES)
            inner = le32toh(inner)
        if inner == 0 or inner > length - place - LENGTH_BYTES or is_batch(batch + place + LENGTH_BYTES, inner):
            if place != start:
                break
            memcpy(batch + place - BATCH_HEAD_BYTES, BATCH_HEAD, BATCH_HEAD_BYTES)
            add(intake, batch + place - BATCH_HEAD_BYTES, length - place + BATCH_HEAD_BYTES, False)
            place = length
            break
        add(intake, batch + place + LENGTH_BYTES, inner, False)
        place += LENGTH_BYTES + inner
    if place != length:
        intake.offset = place
        return False
    intake.offset = 0
    intake.batches += 1
    return True


cdef size_t record_bytes(const char* packet, size_t length, size_t offset) noexcept nogil:
    """Return the size of a packet in a backlog. Of a batch that is split up to *offset* only the rest is stored; 0: all."""
    return sizeof(Record) + (length if offset == 0 else BATCH_HEAD_BYTES + length - offset)


cdef Backlog* new_backlog(size_t size) noexcept nogil:
    """Return an empty backlog for records of *size* bytes in total, or NULL if memory is short; release it with free(3)."""
    cdef Backlog* backlog = <Backlog*>malloc(sizeof(Backlog) + size)
    if backlog is not NULL:
        backlog.next = NULL
        backlog.size = size
        backlog.place = backlog.offset = 0
    return backlog


cdef void store(Backlog* backlog, const char* packet, size_t length, bint is_cut, size_t offset) noexcept nogil:
    """Append a record; for a batch that is split up to *offset*, a batch of the rest."""
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
    """Return a backlog of the packets from *first* on, followed by *following*; NULL if memory is short."""
    cdef size_t i, size = 0
    cdef Backlog* backlog
    for i in range(first, intake.count):
        size += sizeof(Record) + intake.parts[i].iov_len
    backlog = new_backlog(size)
    if backlog is NULL:
        return NULL
    for i in range(first, intake.count):
        # A batch that was taken as one packet has a fault, and will be taken as one packet again.
        intake.batches -= (not intake.is_cut[i] and intake.parts[i].iov_len >= BATCH_HEAD_BYTES
                           and is_batch(<char*>intake.parts[i].iov_base, intake.parts[i].iov_len))
        store(backlog, <char*>intake.parts[i].iov_base, intake.parts[i].iov_len, intake.is_cut[i], 0)
    backlog.place = 0
    backlog.next = following
    return backlog


cdef void resume(Backlog* backlog, Intake* intake) noexcept nogil:
    """Take the next packets of a chain of backlogs. The *place* of a backlog that is used up is its *size*."""
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
    """Return the packets of a chain of backlogs, each with whether the kernel truncated it; of a batch that is partly split, the rest as
    a batch."""
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
