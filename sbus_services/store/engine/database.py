"""The SQLite file of the store: opening, transactions, and errors with a code. Acknowledged means that fsync(2) has returned."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from sbus.protocol.printable import printable
from sbus_programs.config.store import KEPT_ASIDE
from sbus_services.store.engine.messages import EngineError, ErrorName
from sbus_services.store.engine.schema import APPLICATION_ID, TABLES, VERSION
from sbus_services.store.engine.undo_log import UndoLog

BUSY_SECONDS = 5.0
"""Seconds to wait for another process that writes to the file."""

CHECKPOINT_PAGES = 4_000
"""Pages in the write-ahead log, of 4 KiB, after which SQLite copies them into the file."""

LOG_BYTES = 64 << 20
"""Size to which the write-ahead log shrinks after it was longer."""

CACHE_KIB = 64 << 10
"""Size of SQLite's cache: an index of a million keys fits."""

RESERVE = ".reserve"
"""Suffix of an empty file that exists while the store is stopped."""

_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}

_CODES: dict[int, ErrorName] = {
    sqlite3.SQLITE_FULL: "ENOSPC",
    sqlite3.SQLITE_TOOBIG: "EMSGSIZE",
    sqlite3.SQLITE_BUSY: "EBUSY",
    sqlite3.SQLITE_LOCKED: "EBUSY",
    sqlite3.SQLITE_PERM: "EACCES",
    sqlite3.SQLITE_READONLY: "EACCES",
    sqlite3.SQLITE_CANTOPEN: "EACCES",
    sqlite3.SQLITE_AUTH: "EACCES",
}

_WORDS: dict[ErrorName, str] = {
    "ENOSPC": "no space, or no inode, left on the file system {mount} for {file}; free some: see df -h and df -i",
    "EBUSY": "another process writes to {file}; end it",
    "EACCES": "cannot write {file}: {why}; let the user of the service own it and its directory",
    "EIO": "cannot use {file}: {why}",
    "EMSGSIZE": "too long for {file}: {why}",
}


class Cache(Protocol):
    """Figures in memory that are saved with each transaction."""

    def load(self) -> None:
        """Read all figures from the file, after a transaction was lost."""

    def save(self) -> None:
        """Write what has changed into the file, before a commit."""

    def committed(self) -> None:
        """Note that what save() has written is on the disk."""


class Database:
    """One open file. Its methods are called by one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Open or create *path*, which only one process at a time can do. Raises EngineError."""
        self.path = path
        self.caches: list[Cache] = []
        self.undo_log = UndoLog()
        self.is_shrinking = False
        """Whether the next commit copies the log into the file, which has its smaller size only then."""
        self._in_part = False
        self._is_read_only = False
        self._lock = _locked(path)
        try:
            self.connection = _open(path)
        except BaseException:
            os.close(self._lock)
            raise
        status = os.stat(path)
        self._identity = (status.st_dev, status.st_ino)
        self.execute = self.connection.execute
        self.executemany = self.connection.executemany

    def close(self) -> None:
        """Close the file. What was committed is in it."""
        self.connection.close()
        with contextlib.suppress(OSError):  # SQLite has removed the write-ahead log, and the next start needs its inode
            _create(_beside(self.path, RESERVE))
        os.close(self._lock)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open. SQLite ends it after some errors."""
        return self.connection.in_transaction

    def begin(self) -> None:
        """Begin a transaction. Raises EngineError."""
        try:
            self.execute("BEGIN")
        except sqlite3.Error as error:
            raise self.error(error) from None

    def commit(self) -> None:
        """Commit: when this returns, everything since begin() is on the disk. Raises EngineError; then all of it is undone."""
        if not self.in_transaction:
            # An error ended it, which the operation has handled.
            self.rollback()
            raise EngineError("EIO", f"a transaction in {printable(str(self.path))} has failed; try again")
        try:
            for cache in self.caches:
                cache.save()
            self.execute("COMMIT")
        except sqlite3.Error as error:
            self.rollback()
            raise self.error(error) from None
        self.undo_log.clear()
        for cache in self.caches:
            cache.committed()
        if self.is_shrinking:
            self.is_shrinking = False
            with contextlib.suppress(sqlite3.Error):  # a later commit copies the log
                self.execute("PRAGMA wal_checkpoint").fetchall()

    def rollback(self) -> None:
        """Undo everything since begin()."""
        with contextlib.suppress(sqlite3.Error):
            if self.connection.in_transaction:
                self.execute("ROLLBACK")
        self.undo_log.clear()
        try:
            for cache in self.caches:
                cache.load()
        except sqlite3.Error as error:
            raise self.error(error) from None

    @contextlib.contextmanager
    def operation(self) -> Iterator[None]:
        """All or nothing: a transaction, or a part of the current one that fails alone. Raises EngineError.

        Inside a part it is nothing of its own: an error in it must end that part.
        """
        if self._in_part:
            yield
            return
        if self.connection.in_transaction:
            with self._part():
                yield
            return
        self.begin()
        try:
            with self._checked():
                yield
        except BaseException as error:
            self.rollback()
            if isinstance(error, sqlite3.Error):
                raise self.error(error) from None
            raise
        self.commit()

    @contextlib.contextmanager
    def _checked(self) -> Iterator[None]:
        """An operation that fails if it changes a file that is not at its path any more; it can read. Raises EngineError."""
        before = self.connection.total_changes
        yield
        if self.connection.total_changes != before:
            self._check_place()

    @contextlib.contextmanager
    def _part(self) -> Iterator[None]:
        """A part of the current transaction that fails alone. Raises EngineError."""
        try:
            self.execute("SAVEPOINT operation")
            self.undo_log.begin()
        except sqlite3.Error as error:
            raise self.error(error) from None
        self._in_part = True
        try:
            with self._checked():
                yield
            self._in_part = False
            self.execute("RELEASE operation")
        except BaseException as error:
            self._in_part = False
            self._undo_part()
            if isinstance(error, sqlite3.Error):
                raise self.error(error) from None
            raise
        self.undo_log.keep()

    def _undo_part(self) -> None:
        """Undo everything since the savepoint. If SQLite has ended the transaction, all of it is undone."""
        if not self.connection.in_transaction:
            self.rollback()
            return
        try:
            self.execute("ROLLBACK TO operation")
            self.execute("RELEASE operation")
        except sqlite3.Error:
            self.rollback()
        else:
            self.undo_log.undo()

    def error(self, error: sqlite3.Error) -> EngineError:
        """Return *error* of SQLite as an error of the store. A file that is found damaged is checked when it is opened again."""
        if _primary(error) in _DAMAGED:
            with contextlib.suppress(OSError):
                _mark(self.path).touch()
        if self._is_read_only and _primary(error) == sqlite3.SQLITE_READONLY:
            return _worded("ENOSPC", self.path, "")
        return _store_error(error, self.path)

    def set_read_only(self, *, is_read_only: bool) -> None:
        """Refuse all changes from now on, or no longer, because the disk is full. Raises EngineError."""
        self._is_read_only = is_read_only
        try:
            self.execute(f"PRAGMA query_only = {int(is_read_only)}")
        except sqlite3.Error as error:
            raise self.error(error) from None

    def free_bytes(self) -> int:
        """Return the free space of the disk, in bytes. Raises EngineError (EIO) if the file is not at its path any more."""
        self._check_place()
        try:
            found = os.statvfs(self.path)
        except OSError as error:
            raise self._moved(error) from None
        return found.f_bavail * found.f_frsize

    def _check_place(self) -> None:
        """Raise EngineError (EIO) if the file is not at its path any more: what is written into it would be gone at the next start."""
        try:
            status = os.stat(self.path)
        except OSError as error:
            raise self._moved(error) from None
        if (status.st_dev, status.st_ino) != self._identity:
            name = printable(str(self.path))
            raise EngineError("EIO", f"the file {name} was replaced by another one while the store runs; restart the store")

    def _moved(self, error: OSError) -> EngineError:
        """Return *error*, of a system call with the path, as an error of the store."""
        words = f"the file {printable(str(self.path))} is not there any more: {error.strerror}; move it back, or restart the store"
        return EngineError("EIO", words)

    def size(self) -> int:
        """Return the size of the file and its write-ahead log, in bytes."""
        total = 0
        for path in (self.path, _beside(self.path, "-wal")):
            with contextlib.suppress(OSError):
                total += path.stat().st_size
        return total


def _open(path: Path) -> sqlite3.Connection:
    """Return a connection to *path*, with its tables. A damaged file is moved away first. Raises EngineError."""
    is_suspect = _mark(path).exists()
    _spend_reserve(path)
    try:
        connection = _connect(path)
        try:
            _prepare(connection, path)
            if is_suspect:
                _check(connection)
                # A row that the disk has changed differs from its entries in indexes, and could not be removed.
                connection.executescript("REINDEX message; REINDEX job;")
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        if _primary(error) in _DAMAGED:
            raise _kept_aside(path, error) from None
        raise _store_error(error, path) from None
    _mark(path).unlink(missing_ok=True)
    return connection


def _spend_reserve(path: Path) -> None:
    """Make the reserve the write-ahead log, if the file has none: the disk may have no inode for a new one."""
    if path.exists() and not _beside(path, "-wal").exists():
        with contextlib.suppress(OSError):
            _beside(path, RESERVE).rename(_beside(path, "-wal"))


def _connect(path: Path) -> sqlite3.Connection:
    """Return a connection to *path*, which only the own user can read."""
    try:
        _create(path)
    except OSError as error:
        raise _open_error(error, path) from None
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=256)
    connection.text_factory = _text  # the rest can be read if a text is damaged
    return connection


def _create(path: Path) -> None:
    """Create the file *path*, which only the own user can read, if it does not exist. Raises OSError."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _text(data: bytes) -> str:
    """Return a text of the file."""
    return data.decode("utf-8", "replace")


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Set up *connection*, and create the tables in a new file. Raises EngineError if the file is of another program or version."""
    run = connection.execute
    # The only user of the file needs no shared memory, which some file systems do not have. SQLite then locks the file itself, too.
    run("PRAGMA locking_mode = EXCLUSIVE")
    (version,) = run("PRAGMA user_version").fetchone()
    (application,) = run("PRAGMA application_id").fetchone()
    (objects,) = run("SELECT COUNT(*) FROM sqlite_schema").fetchone()
    name = printable(str(path))
    if objects and application != APPLICATION_ID:
        raise EngineError("EINVAL", f"{name} is not a file of sbus-store; use another path")
    if version > VERSION:
        words = f"{name} was written by a newer version of sbus-store: format {version}, this version knows {VERSION}"
        raise EngineError("EINVAL", f"{words}; install the newer version, or use another path")
    if not objects:
        run("PRAGMA auto_vacuum = INCREMENTAL")
    (mode,) = run("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        words = f"the file system of {name} cannot have a write-ahead log: SQLite keeps the mode '{printable(str(mode))}'"
        raise EngineError("EIO", f"{words}; use a file on a local disk, see file in store.toml(5)")
    run("PRAGMA synchronous = FULL")
    run(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    run(f"PRAGMA journal_size_limit = {LOG_BYTES}")
    run(f"PRAGMA cache_size = -{CACHE_KIB}")
    # Debian's SQLite writes zeros over what is removed: a purge would need as much space in the log, which a full disk does not have.
    run("PRAGMA secure_delete = FAST")
    run("PRAGMA temp_store = MEMORY")
    if not objects:
        pragmas = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION};"
        connection.executescript(f"BEGIN; {TABLES} {pragmas} COMMIT;")
        _sync_folder(path.parent)


def _check(connection: sqlite3.Connection) -> None:
    """Read the whole file, which was found damaged before. Raises sqlite3.DatabaseError if it is."""
    found = [row[0] for row in connection.execute("PRAGMA quick_check(1)")]
    if found != ["ok"]:
        error = sqlite3.DatabaseError(printable(str(found[0]), 200))
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error


def _kept_aside(path: Path, error: sqlite3.Error) -> EngineError:
    """Rename the damaged file at *path* and its log, and return the error that says so."""
    base = f"{path}{KEPT_ASIDE}{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
    kept, number = Path(base), 1
    while kept.exists():
        number += 1
        kept = Path(f"{base}-{number}")
    name, why = printable(str(path)), printable(str(error), 200)
    try:
        for suffix in ("-wal", ""):
            if _beside(path, suffix).exists():
                _beside(path, suffix).rename(_beside(kept, suffix))
        _beside(path, "-shm").unlink(missing_ok=True)
        _mark(path).unlink(missing_ok=True)
        _sync_folder(path.parent)
    except OSError as failed:
        return EngineError("EIO", f"{name} is damaged: {why}; it cannot be renamed: {failed.strerror}; move it elsewhere")
    recover = f"sqlite3 {printable(str(kept))} .recover"
    return EngineError(
        "EIO", f"{name} is damaged: {why}; it was renamed to {printable(str(kept))}. Start again with an empty store; see {recover}"
    )


def _locked(path: Path) -> int:
    """Return a descriptor with the lock that only one store at a time has. Raises EngineError."""
    lock = _beside(path, ".lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _open_error(error, lock) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise EngineError("EBUSY", f"another store uses {printable(str(path))}; stop it, or use another path") from None
    return descriptor


def _sync_folder(folder: Path) -> None:
    """Make new names in *folder* survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def mount_of(path: Path) -> str:
    """Return the folder at which the file system of *path* is mounted, as printable text."""
    folder = Path(os.path.realpath(path)).parent
    while not folder.is_mount():
        folder = folder.parent
    return printable(str(folder))


def _open_error(error: OSError, path: Path) -> EngineError:
    """Return *error*, by which *path* cannot be opened, as an error of the store."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return _worded("ENOSPC", path, "")
    return _worded("EACCES", path, error.strerror or "", "cannot open {file}: {why}; let the user of the service write it")


def _has_no_room(path: Path) -> bool:
    """Return whether the file system of *path* has no space or no inode left."""
    try:
        found = os.statvfs(path.parent)
    except OSError:
        return False
    return not found.f_bavail or (found.f_files > 0 and not found.f_favail)


def _store_error(error: sqlite3.Error, path: Path) -> EngineError:
    """Return *error* of SQLite as an error of the store."""
    primary = _primary(error)
    code: ErrorName = _CODES.get(primary, "EIO")
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_SHMSIZE:
        code = "ENOSPC"
    if primary in {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR} and _has_no_room(path):
        code = "ENOSPC"  # SQLite does not say why it cannot create a file in this folder
    words = "{file} is damaged: {why}; restart the store, which checks the file and renames it" if primary in _DAMAGED else ""
    return _worded(code, path, printable(str(error), 200), words)


def _worded(code: ErrorName, path: Path, why: str, words: str = "") -> EngineError:
    """Return an error about *path*, by default with the words of *code*."""
    return EngineError(code, (words or _WORDS[code]).format(file=printable(str(path)), why=why, mount=mount_of(path)))


def _primary(error: sqlite3.Error) -> int:
    """Return the primary code of *error*, or 0."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _mark(path: Path) -> Path:
    """Return the file whose existence means that *path* was found damaged."""
    return _beside(path, ".suspect")


def _beside(path: Path, suffix: str) -> Path:
    """Return *path* with *suffix* appended to its name."""
    return path.with_name(path.name + suffix)
