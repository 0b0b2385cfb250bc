# What writer.pxi and stream_writer.pxi share: the pieces of packets and their lengths, and what was sent.

cdef enum:
    LENGTH_BYTES = 4        # before each packet in a batch or a stream: intake.BATCH_LENGTH_BYTES

cdef enum Outcome:
    ALL_TAKEN
    SOCKET_FULL             # the rest can be sent once the socket is writable
    PACKET_TOO_BIG          # the first packet that was not taken is larger than the socket's SO_SNDBUF, and never will be
    PEER_GONE
    SENT_IN_PART            # a stream got a part of the first packet that is not counted as taken, perhaps none: the caller keeps it as rest
