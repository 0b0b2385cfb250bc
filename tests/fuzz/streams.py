"""Fuzz target: a stream of a direct connection is the same frames however it is cut into chunks, or an error at the same frame.

Input: a byte with the size of the chunks, then the stream.
"""

from __future__ import annotations

from sbus_services.link.network.direct_frames import Frame, FrameError, FrameReader


def check(data: bytes) -> None:
    """The frames do not depend on the chunks, and no more is kept than one incomplete frame."""
    if not data:
        return
    size, stream = 1 + data[0], data[1:]
    assert _frames([stream]) == _frames([stream[place : place + size] for place in range(0, len(stream), size)])


def _frames(chunks: list[bytes]) -> tuple[list[Frame], str]:
    """Return the frames in *chunks*, and the error that ended them."""
    reader = FrameReader()
    frames: list[Frame] = []
    try:
        for chunk in chunks:
            frames += reader.feed(chunk)
    except FrameError as error:
        return frames, str(error)
    return frames, ""
