"""A file on FUSE with a writeback cache: its last release waits for its server, because fuse_release() of the kernel writes dirty pages.

So also a file that no process has received hangs: in the close of the socket in whose queue it is.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import select
import signal
import socket
import struct
from collections.abc import Callable

from tests.attacks import filesystems
from tests.attacks.attacker import AttackContext
from tests.attacks.filesystems import SendsFuseFiles

_GETATTR, _SETATTR, _READ, _WRITE, _RELEASE, _INIT, _LOOKUP = 3, 4, 15, 16, 18, 26, 1
_WRITEBACK_CACHE = 1 << 16
_FILE = 2
_ANSWERS = {_WRITE: struct.pack("=II", mmap.PAGESIZE, 0), _READ: bytes(mmap.PAGESIZE), _RELEASE: b""}


class LeavesDirtyFile(SendsFuseFiles):
    """A role that leaves a dirty file in the queue of a socket, by *send*, which sends a descriptor there, and waits until it is killed.

    The receiver must not close that socket before the role has begun.
    """

    def __init__(self, send: Callable[[str, int], socket.socket]) -> None:
        """*send* sends a descriptor to the address, and returns its socket."""
        super().__init__()
        self._give = send

    def __call__(self, context: AttackContext) -> None:
        """Leave the file there. Our own end lets the server end, and only then can the process that has mapped the file end."""
        orders, orderer = os.pipe()
        left, leaver = os.pipe()
        if not os.fork():
            os.close(orderer)
            with contextlib.suppress(OSError):
                _serve(self._device, orders)
            os._exit(0)
        os.close(self._device)
        if not os.fork():
            filesystems.end_with_parent()
            self._leave(context, orderer)
            os.write(leaver, b"x")
            signal.pause()
        assert os.read(left, 1)
        context.count()
        context.begin()
        signal.pause()

    def _leave(self, context: AttackContext, orderer: int) -> None:
        """Send the file, and only then make it dirty: a close of our own would write the page."""
        path = os.path.join(self._folder, "file")
        mapped = _mapped(path)
        fd = os.open(path, os.O_RDWR)
        sock = self._give(context.path, fd)
        os.close(fd)
        os.write(orderer, b"x")  # from now on nothing is written
        os.close(orderer)
        ctypes.memset(mapped, 1, 1)
        sock.close()


def _mapped(path: str) -> int:
    """Return the address of the first page of a file, which is mapped."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    fd = os.open(path, os.O_RDWR)
    address = libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    os.close(fd)
    assert address != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
    return int(address)


def _serve(device: int, reader: int) -> None:
    """Answer the kernel's requests, but none to write after a byte from *reader*, at whose end the server ends."""
    is_silent = False
    while True:
        ready, _, _ = select.select([device, reader], [], [])
        if reader in ready:
            if not os.read(reader, 1):
                return
            is_silent = True
        if device not in ready:
            continue
        request = os.read(device, 1 << 20)
        _, opcode, unique, node, *_ = filesystems.HEADER.unpack_from(request)
        if opcode in filesystems.UNANSWERED or (is_silent and opcode in (_WRITE, _SETATTR)):
            continue
        error, data = _answer(opcode, node)
        os.write(device, filesystems.REPLY.pack(filesystems.REPLY.size + len(data), error, unique) + data)


def _answer(opcode: int, node: int) -> tuple[int, bytes]:
    """Return the error and the data of the answer to a request."""
    if opcode == _INIT:
        return 0, struct.pack("=IIIIHHIIHHI7I", 7, 31, 65_536, _WRITEBACK_CACHE, 16, 12, 65_536, 1, 0, 0, 0, *[0] * 7)
    if opcode in _ANSWERS:
        return 0, _ANSWERS[opcode]
    if opcode == _LOOKUP:
        return 0, struct.pack("=QQQQII", _FILE, 1, 0, 0, 0, 0) + _attributes(_FILE)
    if opcode in (_GETATTR, _SETATTR):
        return 0, struct.pack("=QII", 0, 0, 0) + _attributes(node)
    return filesystems.answer(opcode, node)


def _attributes(node: int) -> bytes:
    """Return the attributes of the folder, or of the file, which has a page."""
    packed = bytearray(filesystems.attributes(node))
    if node == _FILE:
        struct.pack_into("=Q", packed, 8, mmap.PAGESIZE)
    return bytes(packed)
