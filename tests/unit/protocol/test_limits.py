from __future__ import annotations

from sbusd.protocol.limits import MAX_BATCH_BYTES, MAX_KEY_BYTES, MAX_PACKET_BYTES


def test_the_sizes_are_those_of_the_protocol() -> None:
    """409,600 bytes is the original's; a key is as long as a path can be, with its NUL."""
    assert MAX_PACKET_BYTES == 409_600
    assert MAX_KEY_BYTES == 4_096
    assert MAX_BATCH_BYTES == 65_536
