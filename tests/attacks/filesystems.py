"""File systems of a hostile user: the last close of a file on them does what its owner likes, or a lot.

A FUSE file asks its server at each close(2), and the server does not answer: fuse(4), the kernel's include/uapi/linux/fuse.h. A memory
file system that is mounted in a namespace of the user's own, user_namespaces(7), and unmounted while a file is open, is taken down by
the process that closes that file.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
from collections.abc import Callable
from pathlib import Path

from tests.attacks.attacker import AttackContext, Role
from tests.attacks.descriptors import Keep, Make, sends

DEVICE = Path("/dev/fuse")
FILES = 30_000
"""In a memory file system: some tens of milliseconds to remove."""

_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_REC, _MS_PRIVATE, _MNT_DETACH = 0x4000, 1 << 18, 2
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4

_LOOKUP, _FORGET, _GETATTR, _OPEN, _FLUSH, _INIT, _BATCH_FORGET, _INTERRUPT = 1, 2, 3, 14, 25, 26, 42, 36
HEADER = struct.Struct("=IIQQIIII")
REPLY = struct.Struct("=IiQ")
_ENOSYS = 38
UNANSWERED = (_FORGET, _BATCH_FORGET, _INTERRUPT)
"""Requests that have no answer."""

_ROOT, _FILE = 1, 2

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> None:
    """Raise OSError if a function of the C library has failed."""
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _mount(kind: bytes, target: str, options: bytes = b"") -> None:
    """Mount a file system of *kind*. Raises OSError."""
    _check(_libc.mount(kind, os.fsencode(target), kind, 0, options))


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent has ended."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL))


class SendsFuseFiles:
    """A role that sends files of its own FUSE file system, whose server does not answer when another process closes one.

    *send* makes the role that sends what it is given, by default to a bus.
    """

    def __init__(self, send: Callable[[Make], Role] = sends) -> None:
        self._send = send

    def prepare(self, context: AttackContext) -> None:
        """As root, mount the file system, for this process and its children: distributions let each user do so by fusermount(1)."""
        self._device = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
        self._folder = os.path.join(os.path.dirname(context.path), f"fuse{context.place}")
        os.makedirs(self._folder, exist_ok=True)
        _check(_libc.unshare(_CLONE_NEWNS))
        _check(_libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None))
        _mount(b"fuse", self._folder, b"fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other" % self._device)

    def __call__(self, context: AttackContext) -> None:
        """Send files without end."""
        server_process = os.getpid()
        if not os.fork():
            # A process of its own, that ends after the other: that one could wait for an answer when it is killed.
            end_with_parent()
            with contextlib.suppress(OSError):
                _serve(self._device, server_process)
            os._exit(0)
        os.close(self._device)
        self._send(_opening(os.path.join(self._folder, "file")))(context)


def _opening(path: str) -> Make:
    """Return what opens *path*."""

    def make(keep: Keep) -> list[int]:
        return [os.open(path, os.O_RDONLY)]

    return make


def _serve(device: int, server_process: int) -> None:
    """Answer the kernel's requests, but for a close by another process than *server_process*."""
    while True:
        request = os.read(device, 1 << 20)
        _, opcode, unique, node, _, _, pid, _ = HEADER.unpack_from(request)
        if opcode in UNANSWERED or (opcode == _FLUSH and pid != server_process):
            continue
        error, data = answer(opcode, node)
        os.write(device, REPLY.pack(REPLY.size + len(data), error, unique) + data)


def answer(opcode: int, node: int) -> tuple[int, bytes]:
    """Return the error and the data of the answer to a request."""
    if opcode == _INIT:
        return 0, struct.pack("=IIIIHHIIHHI7I", 7, 31, 65_536, 0, 16, 12, 65_536, 1, 0, 0, 0, *[0] * 7)
    if opcode == _LOOKUP:
        return 0, struct.pack("=QQQQII", _FILE, 1, 0, 0, 0, 0) + attributes(_FILE)
    if opcode == _GETATTR:
        return 0, struct.pack("=QII", 0, 0, 0) + attributes(node)
    if opcode == _OPEN:
        return 0, struct.pack("=QII", 1, 0, 0)
    return (0 if opcode == _FLUSH else -_ENOSYS), b""


def attributes(node: int) -> bytes:
    """Return the attributes of the folder or of the file."""
    mode = 0o40777 if node == _ROOT else 0o100666
    return struct.pack("=6Q10I", node, 0, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4_096, 0)


def full(keep: Keep) -> list[int]:
    """Return a folder of a memory file system with many files that is mounted nowhere any more."""
    folder = "/tmp"
    _mount(b"tmpfs", folder, b"nr_inodes=0")
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    for number in range(FILES):
        os.close(os.open(str(number), os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    _check(_libc.umount2(os.fsencode(folder), _MNT_DETACH))
    return [fd]


def sends_full_file_systems(context: AttackContext, send: Callable[[Make], Role] = sends) -> None:
    """Send the last descriptors of memory file systems, which were mounted in namespaces of our own."""
    uid, gid = os.getuid(), os.getgid()
    _check(_libc.prctl(_PR_SET_DUMPABLE, 1))  # else what is in /proc/self is root's, since that is what we were
    _check(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    send(full)(context)


def why_no_fuse() -> str:
    """Return what is missing for FUSE files, or nothing."""
    return "" if DEVICE.exists() else f"there is no {DEVICE}: load the kernel's module fuse"


def why_no_namespaces() -> str:
    """Return what keeps a user from namespaces of its own, or nothing."""
    pid = os.fork()
    if not pid:
        os.setresuid(65_534, 65_534, 65_534)
        os._exit(0 if _libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS) == 0 else 1)
    return "" if os.waitpid(pid, 0)[1] == 0 else "this machine lets no user have namespaces of its own, user_namespaces(7)"
