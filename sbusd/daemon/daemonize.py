"""The way to the background, and how whoever started the bus learns that it is ready. Spec: sbusd(8), daemon(7).

::

    open_standard_streams()
    …read the configuration, open the listener…
    presence = Presence.enter(options)   # forks, unless -f; before any thread
    listener.listen()                    # errors are still seen where the bus was started
    presence.ready()                     # the parent exits 0; or, with -f, standard output ends
    …
    presence.leave()                     # the pid file goes

In the background the parent waits for the bus: it exits with 0 once that is ready, and with 1 if that ends before.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import NoReturn

from sbusd.daemon.options import Options
from sbusd.protocol.errors import SbusError
from sbusd.protocol.printable import printable

_FAILED = 1
"""Exit status of the parent when the bus has ended instead of getting ready."""

_LAST_STREAM = 2


class PresenceError(SbusError, OSError):
    """The pid file cannot be written; its text is one line. The program exits with status 1."""


class Presence:
    """Where the bus runs, and the files and descriptors by which others see that it does."""

    def __init__(self, *, parent: int | None, pid_file: Path | None) -> None:
        """Stand in this process; *parent* is the pipe to the one that waits for the bus, or None in the foreground."""
        self._background = parent is not None
        self._parent = parent
        self._pid_file = pid_file
        self._written: os.stat_result | None = None

    @classmethod
    def resume(cls, options: Options, *, background: bool, pid_file: tuple[int, int] | None) -> Presence:
        """Return the presence that this same process had before it was started anew in place.

        *pid_file* is device and inode of the file that was made, see :attr:`pid_file`.
        """
        presence = cls(parent=None, pid_file=options.pid_file)
        presence._background = background
        with contextlib.suppress(OSError):
            found = None if options.pid_file is None else os.lstat(options.pid_file)
            if found is not None and (found.st_dev, found.st_ino) == pid_file:
                presence._written = found
        return presence

    @property
    def pid_file(self) -> tuple[int, int] | None:
        """Device and inode of the pid file that was made here, or None."""
        return None if self._written is None else (self._written.st_dev, self._written.st_ino)

    @classmethod
    def enter(cls, options: Options) -> Presence:
        """Return the presence that *options* ask for; without ``-f``, return it in a new process, and never in the one that calls.

        Must be called before the first thread. Standard streams and working directory stay as they are until :meth:`ready`.

        Raises:
            PresenceError: the pid file is there already, or cannot be made.
        """
        if options.foreground:
            return cls(parent=None, pid_file=None)
        presence = cls(parent=_detach(), pid_file=options.pid_file)
        presence.write_pid_file()
        return presence

    @property
    def is_background(self) -> bool:
        """Whether the bus runs in the background."""
        return self._background

    def ready(self) -> None:
        """Tell whoever waits that the bus can be used, and let go of the standard streams."""
        _release_streams(background=self.is_background)
        if self._background:
            # A folder that the bus stays in could not be unmounted.
            os.chdir("/")
        if self._parent is not None:
            # The parent may have been killed while it waited: then nobody wants to know.
            with contextlib.suppress(BrokenPipeError):
                os.write(self._parent, b"\0")
            os.close(self._parent)
            self._parent = None

    def leave(self) -> None:
        """Remove the pid file if it was made here and is still the same file. May be called twice."""
        written, self._written = self._written, None
        # Somebody may have removed it, or put another bus's in its place: then it is not ours to remove.
        with contextlib.suppress(OSError):
            if self._pid_file is not None and written is not None and os.path.samestat(os.lstat(self._pid_file), written):
                os.unlink(self._pid_file)

    def write_pid_file(self) -> None:
        """Make the pid file, if one is wanted. Raises PresenceError if it is there already, or cannot be made."""
        if self._pid_file is None:
            return
        shown = printable(str(self._pid_file))
        try:
            fd = os.open(self._pid_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except FileExistsError:
            raise PresenceError(f"pid file {shown} already exists; stop that bus, remove the file if no bus runs, or use -p") from None
        except OSError as error:
            raise PresenceError(f"cannot create pid file {shown}: {error.strerror}; choose another with -p, or /dev/null") from None
        self._written = os.fstat(fd)
        try:
            # Whatever the umask: others read it to find the bus.
            os.fchmod(fd, 0o644)
            os.write(fd, f"{os.getpid()}\n".encode())
        except OSError as error:
            self.leave()
            raise PresenceError(f"cannot write pid file {shown}: {error.strerror}; choose another with -p") from None
        finally:
            os.close(fd)


def open_standard_streams() -> None:
    """Open the null device as each of the three standard streams that is closed: the very first thing a daemon does.

    Else the next socket would take its number, and be lost when the streams are let go of.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= _LAST_STREAM:
        os.set_inheritable(fd, True)
    os.close(fd)


def _detach() -> int:
    """Return in a process that no terminal controls, with a pipe on which the one that calls waits for word before it exits."""
    # What is buffered would be written twice.
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        _wait_and_exit(reader)
    os.close(reader)
    os.setsid()
    # The process that leads a session could still get a terminal, by opening one; its child cannot.
    if os.fork():
        os._exit(0)
    return writer


def _wait_and_exit(reader: int) -> NoReturn:
    """End this process: with 0 when the bus says that it is ready, with 1 if it ends without."""
    status = _FAILED
    try:
        status = 0 if os.read(reader, 1) else _FAILED
    finally:
        # Not the way out through the interpreter: what it would clean up belongs to the bus now.
        os._exit(status)


def _release_streams(*, background: bool) -> None:
    """Replace standard input and output by the null device, so that a reader sees the end; in the background, a terminal too."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        for fd in (0, 1, 2) if background and os.isatty(2) else (0, 1):
            os.dup2(null, fd)
    finally:
        os.close(null)
