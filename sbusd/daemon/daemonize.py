"""The way to the background, and the notification of the calling process. Spec: sbusd(8), daemon(7).

::

    open_standard_streams()
    …read the configuration, open the listener…
    daemonizer = Daemonizer.enter(options)   # forks, unless -f; before any thread
    listener.listen()                        # errors still go to the terminal of the caller
    daemonizer.ready()                       # the parent exits with 0; with -f, standard output is closed
    …
    daemonizer.leave()                       # removes the pid file

In the background the parent waits for the bus. It exits with 0 when the bus is ready, and with 1 if the bus ends before.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import NoReturn

from sbus.protocol.errors import SbusError
from sbus.protocol.printable import printable
from sbusd.daemon.options import Options

_FAILED = 1
"""Exit status of the parent if the bus ends before it is ready."""

_LAST_STREAM = 2


class PidFileError(SbusError, OSError):
    """The pid file cannot be written; the text is one line. The program exits with status 1."""


class Daemonizer:
    """The foreground or background process of a bus, its pid file, and its standard streams."""

    def __init__(self, *, parent: int | None, pid_file: Path | None) -> None:
        """*parent* is the pipe to the process that waits for the bus, or None in the foreground."""
        self._background = parent is not None
        self._parent = parent
        self._pid_file = pid_file
        self._written: os.stat_result | None = None

    @classmethod
    def resume(cls, options: Options, *, background: bool, pid_file: tuple[int, int] | None) -> Daemonizer:
        """Return the daemonizer of this process after a restart in place.

        *pid_file* is device and inode of the file that the bus created, see :attr:`pid_file`.
        """
        resumed = cls(parent=None, pid_file=options.pid_file)
        resumed._background = background
        with contextlib.suppress(OSError):
            found = None if options.pid_file is None else os.lstat(options.pid_file)
            if found is not None and (found.st_dev, found.st_ino) == pid_file:
                resumed._written = found
        return resumed

    @property
    def pid_file(self) -> tuple[int, int] | None:
        """Device and inode of the pid file that the bus created, or None."""
        return None if self._written is None else (self._written.st_dev, self._written.st_ino)

    @classmethod
    def enter(cls, options: Options) -> Daemonizer:
        """Go to the background, unless *options* have ``-f``: then this returns in a new process only.

        Call it before the first thread. Standard streams and working directory do not change before :meth:`ready`.

        Raises:
            PidFileError: the pid file exists already, or cannot be created.
        """
        if options.foreground:
            return cls(parent=None, pid_file=None)
        entered = cls(parent=_detach(), pid_file=options.pid_file)
        entered.write_pid_file()
        return entered

    @property
    def is_background(self) -> bool:
        """Whether the bus runs in the background."""
        return self._background

    def ready(self) -> None:
        """Notify the parent that the bus is ready, and release the standard streams."""
        _release_streams(background=self.is_background)
        if self._background:
            # The file system of a working directory could not be unmounted.
            os.chdir("/")
        if self._parent is not None:
            # The parent may have been killed while it waited.
            with contextlib.suppress(BrokenPipeError):
                os.write(self._parent, b"\0")
            os.close(self._parent)
            self._parent = None

    def leave(self) -> None:
        """Remove the pid file if the bus created it and it is still the same file. May be called twice."""
        written, self._written = self._written, None
        # Another process may have removed or replaced it; then it belongs to that process.
        with contextlib.suppress(OSError):
            if self._pid_file is not None and written is not None and os.path.samestat(os.lstat(self._pid_file), written):
                os.unlink(self._pid_file)

    def write_pid_file(self) -> None:
        """Create the pid file, if there is one. Raises PidFileError if it exists already, or cannot be created."""
        if self._pid_file is None:
            return
        shown = printable(str(self._pid_file))
        try:
            fd = os.open(self._pid_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except FileExistsError:
            raise PidFileError(f"pid file {shown} already exists; stop that bus, remove the file if no bus runs, or use -p") from None
        except OSError as error:
            raise PidFileError(f"cannot create pid file {shown}: {error.strerror}; choose another with -p, or /dev/null") from None
        self._written = os.fstat(fd)
        try:
            # Independent of the umask: others read the file to find the bus.
            os.fchmod(fd, 0o644)
            os.write(fd, f"{os.getpid()}\n".encode())
        except OSError as error:
            self.leave()
            raise PidFileError(f"cannot write pid file {shown}: {error.strerror}; choose another with -p") from None
        finally:
            os.close(fd)


def open_standard_streams() -> None:
    """Open the null device in place of each closed standard stream. A daemon must do this first.

    Otherwise the next socket would get that number, and be closed when the streams are released.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= _LAST_STREAM:
        os.set_inheritable(fd, True)
    os.close(fd)


def _detach() -> int:
    """Return in a process without a controlling terminal, with the pipe on which the calling process waits."""
    # Both processes would write buffered text.
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        _wait_and_exit(reader)
    os.close(reader)
    os.setsid()
    # A session leader could still get a controlling terminal by opening one; its child cannot.
    if os.fork():
        os._exit(0)
    return writer


def _wait_and_exit(reader: int) -> NoReturn:
    """Exit with 0 when the bus is ready, or with 1 if it ends before."""
    status = _FAILED
    try:
        status = 0 if os.read(reader, 1) else _FAILED
    finally:
        # Without the cleanup of the interpreter: those resources belong to the bus now.
        os._exit(status)


def _release_streams(*, background: bool) -> None:
    """Replace standard input and output by the null device, so that a reader sees the end; in the *background*, replace a terminal too."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        for fd in (0, 1, 2) if background and os.isatty(2) else (0, 1):
            os.dup2(null, fd)
    finally:
        os.close(null)
