"""The configuration files: where they are, and their content. Spec: sbusd.toml(5); XDG Base Directory.

A drop-in may be written by a program with a defect, or be a link to anything. Reading it must neither block nor take long. So only regular
files are read, and no more bytes than a configuration needs.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from errno import EISDIR, ENXIO
from pathlib import Path
from typing import BinaryIO

from sbus.protocol.errors import SbusError
from sbus.protocol.printable import printable

PATH_MAX = 4096
"""Maximum length of a path, limits.h(0p): a message never cuts one."""

SHOWN_PATH_CHARACTERS, SHOWN_KEY_CHARACTERS = 120, 80
"""Parts of a path and a key in a message of limited length, such as the status of a unit: clients show 300 characters of that."""

SYSTEM_FOLDER = Path("/etc/sbus")

PACKAGE_FOLDER = Path("/usr/lib/sbus")
"""The files of packages."""

OTHER_FOLDERS = (Path("/run/sbus"), PACKAGE_FOLDER)
"""More directories with drop-ins of the system: those of this boot, and those of packages. Source: systemd.unit(5)."""

MAX_FILE_BYTES = 256 << 10
"""Maximum size of a file: enough for 1,000 rules, and small enough that no file takes minutes to read."""


class ConfigError(SbusError, ValueError):
    """A configuration file that cannot be used. The text is one line: file, key if there is one, and reason.

    ``key`` is dotted, as in TOML, and empty for the file as a whole. The caller makes sure that ``key`` and ``reason`` are printable. A
    program that stops because of it exits with status 78, EX_CONFIG of sysexits.h(3head).
    """

    def __init__(self, file: Path, key: str, reason: str) -> None:
        where = printable(str(file), PATH_MAX)
        super().__init__(f"{where}: {key}: {reason}" if key else f"{where}: {reason}")
        self.file = file
        self.key = key
        self.reason = reason

    def shown(self, limit: int) -> str:
        """Return the text, of at most *limit* characters, 300 or more. The end of a long path and the key stay; ``…`` shows each cut."""
        if len(str(self)) <= limit:
            return str(self)
        where = printable(str(self.file), PATH_MAX)
        if len(where) > SHOWN_PATH_CHARACTERS:
            where = f"…{where[1 - SHOWN_PATH_CHARACTERS :]}"
        key = self.key if len(self.key) <= SHOWN_KEY_CHARACTERS else f"{self.key[: SHOWN_KEY_CHARACTERS - 1]}…"
        line = ": ".join(filter(None, (where, key, self.reason)))
        return line if len(line) <= limit else f"{line[: limit - 1]}…"


class NotRegularError(OSError):
    """The file is neither regular, nor a directory, nor ``/dev/null``."""


def default_main_file(name: str = "sbusd.toml", *, user_bus: bool = False, environment: Mapping[str, str] | None = None) -> Path:
    """Return the main file *name* of the system bus, or of the *user_bus*: in ``$XDG_CONFIG_HOME/sbus`` or ``~/.config/sbus``."""
    if not user_bus:
        return SYSTEM_FOLDER / name
    environment = os.environ if environment is None else environment
    home = environment.get("XDG_CONFIG_HOME", "")
    # The specification requires that a relative path is ignored.
    folder = Path(home) if os.path.isabs(home) else Path(environment.get("HOME") or "/", ".config")
    return folder / "sbus" / name


def configuration_files(main_file: Path, *, required: bool = False) -> list[Path]:
    """Return the existing files, in the order in which they are read: *main_file*, then its drop-ins by name.

    Drop-ins are the ``*.toml`` files in the directories of :func:`drop_in_folders`. Of several with one name only the first is read. So
    an administrator's file replaces a package's, and an empty file or a link to /dev/null masks it. *required*: the user named the main
    file, so it must exist.

    A directory that cannot be read is itself in the list, before the drop-ins, because its files could come first. Reading it as a file
    raises the error.

    Raises:
        ConfigError: the main file is required and does not exist, or its directory cannot be read.
    """
    found = [main_file] if required or _is_there(main_file) else []
    if required and not _is_there(main_file):
        raise ConfigError(main_file, "", "no such file; name an existing file, or omit the option to use the default")
    drop_ins: dict[str, Path] = {}
    for folder in drop_in_folders(main_file):
        for file in _drop_ins(folder):
            if file == folder:
                found.append(folder)
            else:
                drop_ins.setdefault(file.name, file)
    return found + [drop_ins[name] for name in sorted(drop_ins)]


def drop_in_folders(main_file: Path) -> list[Path]:
    """Return the directories with drop-ins of *main_file*, the most important one first. Their name is the file's with ``.d`` appended.

    A file in /etc/sbus also has such directories in /run/sbus and /usr/lib/sbus; any other file only has the one next to it.
    """
    own = main_file.with_name(main_file.name + ".d")
    return [own, *(folder / own.name for folder in OTHER_FOLDERS if main_file.parent == SYSTEM_FOLDER)]


def overridden(main_file: Path, file: Path) -> list[Path]:
    """Return the drop-ins of *main_file* that are not read because *file* has the same name."""
    folders = drop_in_folders(main_file)
    later = folders[folders.index(file.parent) + 1 :] if file.parent in folders else []
    return [each for folder in later for each in _drop_ins(folder) if each.name == file.name]


def open_regular(file: Path) -> BinaryIO:
    """Return *file*, open for reading; ``/dev/null`` counts as an empty file. Never blocks.

    Raises:
        NotRegularError: it is a FIFO, a socket or a device.
        OSError: it cannot be opened, or is a directory.
    """
    # Without O_NONBLOCK, open(2) of a FIFO waits for a writer.
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        # The error of open(2) for a socket.
        if error.errno == ENXIO:
            raise NotRegularError("not a regular file") from None
        raise
    try:
        _check_regular(os.fstat(descriptor))
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_content(file: Path) -> bytes:
    """Return the content of *file*, at most one byte more than allowed. Raises OSError as :func:`open_regular`."""
    with open_regular(file) as stream:
        return stream.read(MAX_FILE_BYTES + 1)


def _drop_ins(folder: Path) -> list[Path]:
    """Return the drop-ins in *folder*, or *folder* itself if it cannot be read."""
    try:
        # A name that starts with a dot is a temporary file of an editor or a package manager.
        return [folder / name for name in os.listdir(folder) if name.endswith(".toml") and not name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError:
        return [folder]


def _is_there(file: Path) -> bool:
    """Return whether *file* exists. A dangling link exists too: it is an error to report, not a missing file."""
    try:
        os.lstat(file)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise ConfigError(file, "", f"cannot read it: {error.strerror}; let the user of the service read it") from None
    return True


def _check_regular(status: os.stat_result) -> None:
    """Raise OSError as :func:`open_regular` unless *status* belongs to a regular file or to ``/dev/null``."""
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
    if not stat.S_ISREG(status.st_mode) and not _is_null(status):
        raise NotRegularError("not a regular file")


def _is_null(status: os.stat_result) -> bool:
    """Return whether *status* belongs to ``/dev/null``. Source: null(4)."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == os.makedev(1, 3)
