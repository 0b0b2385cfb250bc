# The structures of the switch, each declared before it is used; a compiled control plane uses some of them, and the functions that are
# declared here. See switch.pyx.

include "route/avl.pxd"
include "queue/shared_limits.pxd"
include "plane/fairness.pxd"
include "plane/stalls.pxd"
include "route/trie.pxd"
include "queue/outbox.pxd"
include "route/router.pxd"
include "turn/vouching.pxd"
include "turn/receipts.pxd"
include "wire/intake.pxd"
include "queue/pacing.pxd"
include "turn/direct_messages.pxd"
include "plane/connection.pxd"
include "turn/taps.pxd"
include "sink.pxd"
include "plane/plane.pxd"
include "commands.pxd"

cdef class Switch:
    cdef Plane plane
