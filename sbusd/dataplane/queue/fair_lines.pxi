"""The order ``fair``: the users whose messages are in a queue take turns, one message each. Spec: sbus-protocol(7) §7.

Users here are those that are charged: the subordinate ids of a user have one line with it, as they have one share of the queue.
A user's messages keep their order, in the line of that user. Before a batch is sent, up to BATCH_PACKETS messages leave the lines in turns
and go to `waiting`, from which they are sent like those of any queue. So each message is moved once, and a batch costs the same, however
many messages wait. A loss notice is in the line of the user whose messages were lost, where the gap is. A line without messages after
its notice has one notice for all that is lost there, so that losses do not fill a queue.

When the order changes, the messages that are in the queue keep their turns; those that come later are sent after all of them.
"""

from cython.operator cimport dereference
from libcpp.deque cimport deque
from libcpp.map cimport map as cpp_map
from libcpp.utility cimport pair


cdef inline bint is_fair(Outbox* box) noexcept nogil:
    """Return whether messages that come now wait in the line of their user."""
    return box.order == ORDER_FAIR and (box.lines is NULL or not box.lines.is_closed)


cdef inline bint has_gaps(Outbox* box) noexcept nogil:
    """Return whether messages were lost whose user is known, and that are in no notice yet."""
    return box.lines is not NULL and not box.lines.gaps.empty()


cdef Line* line_of(Outbox* box, uint32_t uid) noexcept nogil:
    """Return the line of a user, which is made if there is none."""
    cdef cpp_map[uint32_t, Line*].iterator found
    cdef pair[uint32_t, Line*] made
    if box.lines is NULL:
        box.lines = new Lines()         # all fields are zero
    found = box.lines.by_uid.find(uid)
    if found != box.lines.by_uid.end():
        return dereference(found).second
    made.first = uid
    made.second = new Line()
    made.second.uid = uid
    box.lines.by_uid.insert(made)
    return made.second


cdef void add_to_line(Outbox* box, Entry entry, uint32_t uid) noexcept nogil:
    """Put a message into the line of a user."""
    cdef Line* line
    if box.lines is not NULL and box.lines.is_closed:
        if box.lines.later is NULL:
            box.lines.later = new deque[Entry]()
        box.lines.later.push_back(entry)
        return
    line = line_of(box, uid)
    if line.entries is NULL:
        line.entries = new deque[Entry]()
        box.lines.turns.push_back(line)
    line.entries.push_back(entry)
    line.noticed = 0


cdef void attribute_loss(Outbox* box, uint32_t uid) noexcept nogil:
    """Note that the last lost message, which is counted in `unreported_losses`, is of a user."""
    cdef Line* line
    if not is_fair(box):
        return
    line = line_of(box, uid)
    if line.unreported == 0:
        box.lines.gaps.push_back(line)
    line.unreported += 1


cdef void restore_line(Outbox* box, uint32_t uid, uint64_t unreported, uint64_t noticed) noexcept nogil:
    """Set what is lost in a line whose entries are there."""
    cdef Line* line = line_of(box, uid)
    if noticed and line.entries is not NULL:
        line.noticed = noticed
    if unreported and line.unreported == 0:
        line.unreported = unreported
        box.lines.gaps.push_back(line)
    remove_unused(box, line)


cdef bint add_notice(Outbox* box) noexcept nogil:
    """Put a loss notice into the first line that needs one, of which there is one; return False if memory is short."""
    cdef Line* line = box.lines.gaps.front()
    cdef uint64_t noticed = line.noticed, unreported = line.unreported
    cdef Packet* notice = loss_notice(box, unreported, noticed)
    cdef Entry older
    if notice is NULL:
        return False
    if noticed:
        older = line.entries.back()
        line.entries.pop_back()
        drop_entry(box, older)
        box.totals.deliveries -= 1
    box.lines.gaps.pop_front()
    line.unreported = 0
    add_to_line(box, new_entry(box, notice, NULL, owner_of(box)), line.uid)
    line.noticed = noticed + unreported
    return True


cdef void take_from_lines(Outbox* box) noexcept nogil:
    """Move messages from the lines to `waiting`, in turns, until that has enough for a batch."""
    cdef Line* line
    if box.waiting is NULL:
        box.waiting = new deque[Entry]()
    while box.waiting.size() < <size_t>BATCH_PACKETS and not box.lines.turns.empty():
        line = box.lines.turns.front()
        box.lines.turns.pop_front()
        box.waiting.push_back(line.entries.front())
        line.entries.pop_front()
        if not line.entries.empty():
            box.lines.turns.push_back(line)
        else:
            del line.entries
            line.entries = NULL
            line.noticed = 0
            remove_unused(box, line)
    remove_lines(box)


cdef void remove_unused(Outbox* box, Line* line) noexcept nogil:
    """Remove a line that has neither messages nor losses."""
    if line.entries is NULL and line.unreported == 0:
        box.lines.by_uid.erase(line.uid)
        del line


cdef void remove_lines(Outbox* box) noexcept nogil:
    """Remove the lines if all are empty. `later` is then the queue."""
    cdef Entries* later = box.lines.later
    if not box.lines.by_uid.empty():
        return
    del box.lines
    box.lines = NULL
    if later is NULL:
        return
    while not box.waiting.empty():      # less than a batch
        later.push_front(box.waiting.back())
        box.waiting.pop_back()
    del box.waiting
    box.waiting = later


cdef void close_lines(Outbox* box) noexcept nogil:
    """Let everything that comes now be sent after all lines, also the notice of what is lost and not noticed."""
    cdef Line* line
    while not box.lines.gaps.empty():
        line = box.lines.gaps.front()
        box.lines.gaps.pop_front()
        line.unreported = 0
        remove_unused(box, line)
    box.lines.is_closed = True
    if box.waiting is NULL:
        box.waiting = new deque[Entry]()
    remove_lines(box)


cdef void abandon_lines(Outbox* box) noexcept nogil:
    """Abandon the lines; their messages are released after those in `waiting`."""
    cdef Line* line
    leave(box.lines.later, NULL, box.account, box.uid, box.totals)
    while not box.lines.by_uid.empty():
        line = dereference(box.lines.by_uid.begin()).second
        box.lines.by_uid.erase(line.uid)
        leave(line.entries, NULL, box.account, box.uid, box.totals)
        del line
    del box.lines
    box.lines = NULL
