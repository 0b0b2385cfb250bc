# cython: language_level=3
"""Memory files in huge pages, and mappings that can use them. Source: madvise(2), MADV_COLLAPSE, since Linux 6.1.

The kernel gives a memory file small pages, unless its administrator has changed ``shmem_enabled``. Of 512 small pages, each is allocated,
and mapped by each reader, one by one. With huge pages, writing costs half, and mapping a tenth. Unlike MFD_HUGETLB this needs no reserved
memory, and the kernel can always split such a page: readers notice no difference.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.errno cimport errno
from libc.stdint cimport uintptr_t
from posix.mman cimport MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, MAP_NORESERVE, MAP_PRIVATE, MAP_SHARED, PROT_NONE, PROT_READ, mmap, munmap
from posix.types cimport off_t
from posix.unistd cimport pwrite

import os

cdef extern from "<sys/mman.h>" nogil:
    int madvise(void* address, size_t size, int advice)

cdef extern from *:
    """
    #ifndef MADV_COLLAPSE
    #define MADV_COLLAPSE 25
    #endif
    """
    int MADV_COLLAPSE

HUGE_PAGE_BYTES = 1 << 21

cdef size_t _huge = HUGE_PAGE_BYTES
cdef size_t _page = os.sysconf("SC_PAGESIZE")


cdef void* _map(int fd, size_t size) noexcept nogil:
    """Map *size* bytes of *fd* at an address at which huge pages are possible; MAP_FAILED if there is no memory, or no permission."""
    cdef char* start
    cdef size_t before
    cdef size_t used
    if size < _huge:
        return mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0)
    # The kernel chooses such an address itself only if shmem_enabled allows huge pages. So take more room, and use its middle.
    start = <char*> mmap(NULL, size + _huge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
    if <void*> start == MAP_FAILED:
        return MAP_FAILED
    before = (_huge - (<uintptr_t> start) % _huge) % _huge
    if mmap(start + before, size, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED:
        munmap(start, size + _huge)
        return MAP_FAILED
    if before:
        munmap(start, before)
    used = before + (size + _page - 1) // _page * _page
    if used < size + _huge:
        munmap(start + used, size + _huge - used)
    return start + before


cdef class Mapping:
    """The first *size* bytes of *fd*, at least one, as a read-only buffer, such as of a memoryview. The last buffer keeps it."""

    cdef void* _address
    cdef size_t _size

    def __cinit__(self, int fd, size_t size):
        """Raises OSError."""
        cdef void* address
        if size < 1:
            raise ValueError("invalid size of a mapping: must be at least 1")
        with nogil:
            address = _map(fd, size)
        if address == MAP_FAILED:
            raise OSError(errno, os.strerror(errno))
        self._address = address
        self._size = size

    def __dealloc__(self):
        cdef void* address = self._address
        cdef size_t size = self._size
        if address != NULL:
            # Many small pages take time.
            with nogil:
                munmap(address, size)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self._address, <Py_ssize_t> self._size, True, flags)


def use_huge_pages(int fd, size_t size):
    """Give the empty memory file *fd* of *size* bytes huge pages, as many as the kernel has, and return whether it has given all.

    The rest of a huge page at the end gets none. Some pages are allocated: the caller writes all of the file.
    """
    cdef size_t place = 0
    cdef size_t whole = size // _huge * _huge
    cdef void* address
    cdef int status = 0
    cdef char zero = 0
    if not whole:
        return True
    with nogil:
        # The kernel collapses small pages, but not nothing.
        while place < whole and status == 0:
            if pwrite(fd, &zero, 1, <off_t> place) < 1:
                status = -1
            place += _huge
        if status == 0:
            address = _map(fd, whole)
            if address == MAP_FAILED:
                status = -1
            else:
                # One that is out of huge pages stops; signals interrupt it only if they kill.
                status = madvise(address, whole, MADV_COLLAPSE)
                munmap(address, whole)
    return status == 0
