"""How much of the C heap is in use: what the compiled switch has allocated. Source: mallinfo(3)."""

from __future__ import annotations

import ctypes
import gc

from tests.support import skips

_FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keep")


class _Heap(ctypes.Structure):
    """struct mallinfo2 of mallinfo(3)."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS)


def heap_bytes(*, is_first: bool = True) -> int:
    """Return how many bytes of the C heap are in use, with nothing in it that only waits to be collected.

    Later calls in a loop need to look only at what is new: a whole collection takes ten milliseconds.
    """
    gc.collect(2 if is_first else 1)
    libc = ctypes.CDLL(None)
    skips.require(hasattr(libc, "mallinfo2"), "needs mallinfo2(3) of glibc 2.33", could_run=False)
    libc.mallinfo2.restype = _Heap
    heap = libc.mallinfo2()
    return int(heap.uordblks) + int(heap.hblkhd)
