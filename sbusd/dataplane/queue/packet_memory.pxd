# Packets in queues, their cost, and the end of abandoned queues. See packet_memory.pxi.

cdef enum:
    ENTRY_BYTES = 26        # an entry, and its part of a block of entries and of the list of those blocks: contract.waiting_bytes
    KNOWN_KEY_BYTES = 64    # contract.KNOWN_KEY_BYTES: a node of the map, and a word of the allocator
