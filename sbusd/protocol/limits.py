"""Sizes of the wire, in bytes, each with its reason."""

from __future__ import annotations

MAX_PACKET_BYTES = 409_600
"""Largest packet accepted, as the original server had it. What a client can really send is its own SO_SNDBUF."""

MAX_KEY_BYTES = 4_096
"""Longest routing key or pattern by default: PATH_MAX, so that any file's path can be a key; a match costs the key's depth."""
