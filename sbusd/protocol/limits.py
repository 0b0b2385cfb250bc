"""Sizes of the wire, in bytes, each with its reason."""

from __future__ import annotations

MAX_PACKET_BYTES = 409_600
"""Largest packet accepted, as the original server had it. What a client can really send is its own SO_SNDBUF."""

MAX_KEY_BYTES = 4_096
"""Longest routing key or pattern by default: PATH_MAX, so that any file's path can be a key; a match costs the key's depth."""

MAX_BATCH_BYTES = 65_536
"""Largest batch that is made, by the bus and by its clients; one that is received may be as long as any packet.

From there on a longer one gains nothing, since what its system call costs is spread over hundreds of small packets already, while
all of them wait for the last: so it stays in a core's own cache between who makes it and who reads it, and it is at most a sixth of
a socket's default buffer, so that one is being read while the next ones are made.
"""
