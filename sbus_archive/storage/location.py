"""The location of an archive: a directory, ``s3://BUCKET/PREFIX`` or ``hdfs://HOST:PORT/PATH``. No I/O. Spec: sbus-record(5)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sbus.protocol.errors import SbusError

SCHEMES = ("s3", "hdfs")
"""URL schemes of object stores and remote file systems."""

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_AUTHORITY = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*(:\d{1,5})?")
_PART = re.compile(r"[A-Za-z0-9._=-]+")
"""A part of a name that needs no escape in a URL, so that a location has one spelling."""

_FORMS = "use a directory, s3://BUCKET/PREFIX or hdfs://HOST:PORT/PATH"


class LocationError(SbusError, ValueError):
    """A location is not valid."""


@dataclass(frozen=True, slots=True, order=True)
class RemotePath:
    """A name in a store: ``authority`` is a bucket of S3 or a host of HDFS, ``key`` the name in it, without a slash at either end.

    It has those parts of :class:`pathlib.Path` that readers of an archive use.
    """

    scheme: str
    authority: str
    key: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}/{self.key}"

    def __truediv__(self, relative: str) -> RemotePath:
        """Return the name *relative* below this one.

        Raises:
            LocationError: *relative* could leave this location, or needs escapes: names in an index entry come from other hosts.
        """
        return replace(self, key="/".join([*([self.key] if self.key else []), *_parts(relative)]))

    @property
    def name(self) -> str:
        """The last part of the name."""
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> RemotePath:
        """The location that contains this name."""
        return replace(self, key=self.key.rpartition("/")[0])

    def resolve(self) -> RemotePath:
        """Return this location: it has only one spelling."""
        return self


ArchivePath = Path | RemotePath
"""The location of an archive, or a name in it."""


def is_remote(path: ArchivePath) -> bool:
    """Return whether *path* is in an object store or a remote file system, not in a directory."""
    return isinstance(path, RemotePath)


def parse_location(text: str) -> ArchivePath:
    """Return the location in *text*: a directory, a URL ``file:/DIR``, or a URL of :data:`SCHEMES`.

    Raises:
        LocationError: it is none of these. The error never quotes a password.
    """
    if "\0" in text:
        raise LocationError(f"invalid location: it contains NUL; {_FORMS}")
    scheme, separator, _ = text.partition("://")
    if not separator and not text.startswith("file:"):
        if not text:
            raise LocationError(f"invalid location: it is empty; {_FORMS}")
        return Path(text)
    try:
        parts = urlsplit(text)
    except ValueError:
        raise LocationError(f"invalid location: not a URL; {_FORMS}") from None
    if "@" in parts.netloc:
        raise LocationError("invalid location: a URL must not contain credentials. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    if parts.scheme == "file":
        if parts.netloc or not parts.path.startswith("/"):
            raise LocationError(f"invalid location {text!r}: a file URL has the form file:/DIR")
        return Path(unquote(parts.path))
    if parts.scheme not in SCHEMES:
        raise LocationError(f"invalid location {text!r}: unknown scheme {scheme!r}; {_FORMS}")
    if parts.query or parts.fragment:
        raise LocationError(f"invalid location {text.partition('?')[0]!r}: a URL of an archive has no query and no fragment")
    if (_BUCKET if parts.scheme == "s3" else _AUTHORITY).fullmatch(parts.netloc) is None or ".." in parts.netloc:
        raise LocationError(f"invalid location {text!r}: invalid {'bucket' if parts.scheme == 's3' else 'host'} {parts.netloc!r}")
    path = parts.path.strip("/")
    return RemotePath(parts.scheme, parts.netloc, "/".join(_parts(path)) if path else "")


def endpoint_of(environ: Mapping[str, str]) -> str:
    """Return the URL of the server of S3 in *environ*, as it is written there; empty means Amazon's."""
    return environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or ""


def _parts(relative: str) -> list[str]:
    """Return the parts of *relative*. Raises LocationError."""
    parts = relative.split("/")
    for part in parts:
        if _PART.fullmatch(part) is None or part in (".", ".."):
            raise LocationError(f"invalid name {relative!r} in an object store: use letters, digits, '.', '_', '=' and '-' between slashes")
    return parts


def parse_tables_location(text: str) -> ArchivePath:
    """Return the location of tables in *text*.

    Raises:
        LocationError: it is not a location, or of a store that cannot create a file only if it does not exist.
    """
    found = parse_location(text)
    if not isinstance(found, Path) and found.scheme != "s3":
        raise LocationError(f"invalid location {text!r}: tables need a directory, or s3://BUCKET/PREFIX")
    return found


def table_uri(root: ArchivePath, name: str) -> str:
    """Return where the table *name* under *root* is."""
    return str(root.absolute() / name if isinstance(root, Path) else root / name)
