"""Where the tables are: a directory, or a prefix in an S3-compatible object store. Spec: sbus-pipeline(8)."""

from __future__ import annotations

import os
import re
from pathlib import Path

Location = Path | str
"""A directory is a :class:`~pathlib.Path`, a prefix in an object store a string such as ``s3://bucket/prefix``."""

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
_OBJECTS = re.compile(r"s3://[a-z0-9][a-z0-9.-]+(/[^/?#\s]+)*/?")

_ENDPOINT = "AWS_ENDPOINT_URL"


def parse_location(text: str) -> Location:
    """Return the location that *text* names.

    Raises:
        ValueError: it is a URI, but not that of a bucket and a prefix in S3.
    """
    if _SCHEME.match(text) is None:
        return Path(text)
    if _OBJECTS.fullmatch(text) is None:
        raise ValueError(f"invalid location {text!r}: use a directory, or s3://BUCKET/PREFIX")
    return text.rstrip("/")


def table_uri(location: Location, name: str) -> str:
    """Return where the table *name* is."""
    return f"{location}/{name}" if isinstance(location, str) else str(location.absolute() / name)


def storage_options(location: Location) -> dict[str, str] | None:
    """Return what the Delta library needs beyond the variables ``AWS_*`` of the environment, None for a directory.

    A server without TLS must be allowed explicitly: naming it with ``http://`` does so.
    """
    if isinstance(location, Path):
        return None
    return {"allow_http": "true"} if os.environ.get(_ENDPOINT, "").startswith("http://") else {}
