"""Sizes of the wire, in bytes, each with its reason."""

from __future__ import annotations

MAX_PACKET_BYTES = 409_600
"""Largest accepted packet, as in the original server. The largest that a client can send depends on its SO_SNDBUF."""

MAX_KEY_BYTES = 4_096
"""Default maximum length of a key or pattern: PATH_MAX, so that the path of any file can be a key. The cost of a match grows with the
key's depth."""

MAX_BATCH_BYTES = 65_536
"""Largest batch that the bus and its clients make; a received batch may be as long as any packet.

A longer batch gains nothing: the cost of its system call is already spread over hundreds of small packets, while all of them wait for
the last. A batch of this size stays in a core's cache between writer and reader. It is at most a sixth of a socket's default buffer, so
that the reader reads one batch while the writer makes the next ones.
"""
