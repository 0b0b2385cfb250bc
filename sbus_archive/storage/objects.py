"""Objects of S3 and files of HDFS, through the clients of PyArrow. Credentials come from the environment. Spec: sbus-record(5)."""

from __future__ import annotations

import errno
import hashlib
import io
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar, cast
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from sbus_archive.storage.attempts import Attempts, StorageError, UnsupportedClientError, reason_of
from sbus_archive.storage.location import RemotePath, endpoint_of

CONNECT_SECONDS = 10.0
"""Maximum time to connect to S3. Its client ends a request that transfers nothing for 3 seconds."""

CHUNK_BYTES = 4 << 20
"""Size of a request for a part of an object, and of a part that is passed to the client: the memory that one transfer uses."""

_HDFS_PORT = 8020

_NEWER_OPTIONS = 21
"""The first version of PyArrow with all options of its client of S3 that are used here."""

_Result = TypeVar("_Result")


def connect(scheme: str, authority: str, environ: Mapping[str, str] = os.environ) -> fs.FileSystem:
    """Return PyArrow's client for *scheme*.

    S3 uses the variables ``AWS_*``, among them ``AWS_ENDPOINT_URL_S3`` or ``AWS_ENDPOINT_URL`` for servers that are not Amazon's.

    Raises:
        UnsupportedClientError: the client is not available, or too old for a variable.
        StorageError: a variable is invalid.
    """
    place = RemotePath(scheme, authority, "")
    try:
        if scheme == "hdfs":
            host, _, port = authority.partition(":")
            return fs.HadoopFileSystem(host, int(port or _HDFS_PORT))
        return _connect_s3(place, environ)
    except ImportError as error:
        raise UnsupportedClientError(place, f"pyarrow {pa.__version__} has no client for {scheme}: {reason_of(error, environ)}") from None
    except (OSError, ValueError) as error:
        raise StorageError(place, f"cannot connect: {reason_of(error, environ)}") from None


@dataclass(frozen=True, slots=True)
class S3Settings:
    """The settings of all clients of S3. ``endpoint`` is a URL, None for Amazon's; without ``key``, clients search for credentials."""

    endpoint: str | None
    region: str | None
    key: str | None
    secret: str | None
    token: str | None
    authorities: str | None
    """A file with the certificates of authorities, None for those of the system."""

    def require_system_authorities(self, place: RemotePath) -> None:
        """Raise UnsupportedClientError if a client would ignore the certificates in ``authorities``."""
        if self.authorities is not None and os.environ.get("SSL_CERT_FILE") != self.authorities:
            raise UnsupportedClientError(place, "deltalake does not read AWS_CA_BUNDLE. Set SSL_CERT_FILE to the same file")


def s3_settings(place: RemotePath, environ: Mapping[str, str]) -> S3Settings:
    """Return the settings in the variables ``AWS_*`` of *environ*. Raises StorageError if they are invalid."""
    endpoint = endpoint_of(environ)
    parts = urlsplit(endpoint)
    if endpoint and (parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.path.strip("/")):
        raise StorageError(place, "invalid AWS_ENDPOINT_URL: must have the form https://HOST:PORT, without credentials and path")
    key, secret = environ.get("AWS_ACCESS_KEY_ID") or None, environ.get("AWS_SECRET_ACCESS_KEY") or None
    if (key is None) != (secret is None):
        raise StorageError(place, "set both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or none of them")
    return S3Settings(
        endpoint=endpoint or None,
        region=environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or ("us-east-1" if endpoint else None),
        key=key,
        secret=secret,
        token=(environ.get("AWS_SESSION_TOKEN") or None) if key else None,
        authorities=environ.get("AWS_CA_BUNDLE") or None,
    )


def _connect_s3(place: RemotePath, environ: Mapping[str, str]) -> fs.FileSystem:
    """Return the client of S3. It makes no request yet."""
    settings = s3_settings(place, environ)
    parts = urlsplit(settings.endpoint or "")
    return fs.S3FileSystem(
        # Without them, the client searches the files and services of Amazon.
        access_key=settings.key,
        secret_key=settings.secret,
        session_token=settings.token,
        region=settings.region,
        endpoint_override=parts.netloc or None,
        scheme=parts.scheme or "https",
        connect_timeout=CONNECT_SECONDS,
        # Otherwise the client keeps all parts in memory that are not sent yet.
        background_writes=False,
        # Attempts repeats requests, and counts them.
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1),
        **_newer_options(place, settings.authorities),
    )


def _newer_options(place: RemotePath, authorities: str | None) -> dict[str, Any]:
    """Return the options that only new clients have. Raises UnsupportedClientError if an old one would ignore *authorities*."""
    if int(pa.__version__.partition(".")[0]) >= _NEWER_OPTIONS:
        # With the first one, small objects are written by one request.
        return {"allow_delayed_open": True, "tls_ca_file_path": authorities}
    if authorities is not None:
        raise UnsupportedClientError(
            place, f"AWS_CA_BUNDLE needs pyarrow {_NEWER_OPTIONS} or later, not {pa.__version__}. Upgrade it, or unset the variable"
        )
    return {}


class ObjectClient:
    """A client of one store, and its attempts. Threads may share it."""

    def __init__(self, make: Callable[[], fs.FileSystem], scheme: str, authority: str, attempts: Attempts | None = None) -> None:
        """Make the client of PyArrow by *make*, and again after the store has refused an operation, see :attr:`files`."""
        self.attempts = attempts or Attempts()
        self.attempts.refused = self._distrust
        self._make = make
        self._files: fs.FileSystem | None = make()
        self._prefix = f"{authority}/" if scheme == "s3" else "/"
        self.is_atomic = scheme == "s3"
        """Whether a name appears only when its object is complete."""

    @property
    def files(self) -> fs.FileSystem:
        """The client of PyArrow. That of S3 reads the files with credentials once, so after a refusal there is a new one."""
        found = self._files
        if found is None:
            found = self._files = self._make()
        return found

    def _distrust(self) -> None:
        """Use a new client from the next operation on: its credentials may have been renewed by then."""
        self._files = None

    def name(self, path: RemotePath) -> str:
        """Return the name by which PyArrow knows *path*."""
        return f"{self._prefix}{path.key}".rstrip("/") or "/"


class ObjectStore:
    """A :class:`~sbus_archive.storage.store.FileStore` below ``root``. Each operation is repeated if it fails."""

    def __init__(self, root: RemotePath, client: ObjectClient) -> None:
        self._root = root
        self._client = client

    @property
    def attempts(self) -> Attempts:
        """The attempts of this store, with their counts."""
        return self._client.attempts

    def path(self, name: str) -> RemotePath:
        """Return the whole path of *name*. Raises LocationError."""
        return self._root / name if name else self._root

    def names(self, folder: str) -> list[str]:
        """Return the names of the objects directly below *folder*, in any order. Raises FileNotFoundError, StorageError."""
        return [each.base_name for each in self._files(folder)]

    def fingerprints(self, folder: str) -> dict[str, str]:
        """Return size and time of change of each object directly below *folder*. Raises FileNotFoundError, StorageError."""
        return {each.base_name: f"{each.size} {each.mtime_ns}" for each in self._files(folder)}

    def _files(self, folder: str) -> list[fs.FileInfo]:
        """Return the objects directly below *folder*. Raises FileNotFoundError, StorageError."""
        path = self.path(folder)
        selector = fs.FileSelector(self._client.name(path))
        found = self.attempts.run("list", path, lambda: self._client.files.get_file_info(selector))
        return [each for each in found if each.type == fs.FileType.File]

    def is_folder(self, folder: str = "") -> bool:
        """Return whether the name of an object begins with *folder*. Raises StorageError."""
        return self._type(folder) == fs.FileType.Directory

    def exists(self, name: str) -> bool:
        """Return whether the object *name* exists. Raises StorageError."""
        return self._type(name) == fs.FileType.File

    def read(self, name: str, limit: int) -> bytes:
        """Return the first *limit* bytes of the object *name*. Raises FileNotFoundError, StorageError."""
        path = self.path(name)

        def get() -> bytes:
            with self._client.files.open_input_file(self._client.name(path)) as stream:
                return stream.read_at(min(limit, stream.size()), 0)

        return self._found(path, "read", get)

    def digest(self, name: str) -> tuple[int, str]:
        """Read the object *name*; return its size in bytes, and its SHA-256. Raises FileNotFoundError, StorageError."""
        digest = hashlib.sha256()
        size = 0
        for part in self.open(name).parts():
            digest.update(part)
            size += len(part)
        return size, digest.hexdigest()

    def open(self, name: str) -> ObjectFile:
        """Return the object *name* as a file. Raises FileNotFoundError, StorageError."""
        path = self.path(name)
        stream = self._found(path, "open", lambda: self._client.files.open_input_file(self._client.name(path)))
        return ObjectFile(stream, path, self.attempts)

    def source(self, name: str) -> pa.PythonFile:
        """Return the object *name* as a file of PyArrow. Raises FileNotFoundError, StorageError."""
        return pa.PythonFile(cast("BinaryIO", self.open(name)), mode="r")

    def put(self, name: str, source: BinaryIO) -> None:
        """Write the object *name* from the start of *source*, in place of an older one. Raises StorageError, OSError.

        The caller compares the object with the source afterwards: not every server checks what it received.
        """
        path = self.path(name)
        target = self._client.name(path)
        draft = target if self._client.is_atomic else f"{target.rpartition('/')[0]}/.{path.name}.tmp"

        def write() -> None:
            source.seek(0)
            # Otherwise PyArrow compresses what has a name like that of a compressed file.
            with self._client.files.open_output_stream(draft, compression=None) as stream:
                while part := source.read(CHUNK_BYTES):
                    stream.write(part)
            if draft != target:
                self._client.files.move(draft, target)

        if not self._client.is_atomic:
            self.attempts.run("create the directory of", path, lambda: self._client.files.create_dir(target.rpartition("/")[0]))
        self.attempts.run("write", path, write)

    def delete(self, name: str) -> None:
        """Delete the object *name*, which need not exist. Raises StorageError."""
        path = self.path(name)
        try:
            self.attempts.run("delete", path, lambda: self._client.files.delete_file(self._client.name(path)))
        except FileNotFoundError:
            return

    def _type(self, name: str) -> fs.FileType:
        """Return what *name* is."""
        path = self.path(name)
        (found,) = self.attempts.run("look up", path, lambda: self._client.files.get_file_info([self._client.name(path)]))
        return found.type

    def _found(self, path: RemotePath, what: str, operation: Callable[[], _Result]) -> _Result:
        """Return the result of *operation*. Raises FileNotFoundError with a short message, StorageError."""
        try:
            return self.attempts.run(what, path, operation)
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, "no such object", str(path)) from None


class ObjectFile(io.RawIOBase):
    """An object that is read in parts; each request is repeated if it fails, so that a reader sees no failure in the middle."""

    def __init__(self, stream: fs.InputFile, path: RemotePath, attempts: Attempts) -> None:
        super().__init__()
        self._stream = stream
        self._path = path
        self._attempts = attempts
        self._size = stream.size()
        self._position = 0

    def parts(self) -> Iterator[bytes]:
        """Yield the content in parts of at most :data:`CHUNK_BYTES`. Raises StorageError."""
        self.seek(0)
        while part := self.read(CHUNK_BYTES):
            yield part

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position, and return it."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, origin + offset)
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """Return *size* bytes from the position, or all up to the end if it is negative or None. Raises StorageError."""
        left = max(0, self._size - self._position)
        wanted = left if size is None or size < 0 else min(size, left)
        part = self._attempts.run("read", self._path, lambda: self._get(wanted)) if wanted else b""
        self._position += len(part)
        return part

    def _get(self, size: int) -> bytes:
        """Return *size* bytes from the position. Raises OSError, also if the server sends fewer."""
        part = self._stream.read_at(size, self._position)
        if len(part) != size:
            raise OSError(errno.EIO, f"the server sent {len(part)} of {size} bytes")
        return part

    def close(self) -> None:
        """Close the object."""
        if not self.closed:
            self._stream.close()
        super().close()
