"""Fuzz target: any configuration files are settings within their bounds, or a ConfigError of one printable line.

Input: the main file and, behind the first NUL, a drop-in.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from typing import get_type_hints

from sbus_programs.config.documents import read_settings
from sbus_programs.config.files import ConfigError
from sbus_programs.config.quantities import NO_BOUND, Bound, Count, Duration, Size
from sbus_programs.config.rules import MAX_PUBLISH_RULES
from sbus_programs.config.settings import LEVELS, DaemonSettings
from sbus_programs.config.users import LAST_ID


def check(data: bytes) -> None:
    """Any two files are settings within their bounds, or a ConfigError of one printable line that names one of them."""
    with _files(data.split(b"\0", 1)) as files:
        try:
            settings = read_settings(files, DaemonSettings)
        except ConfigError as error:
            assert str(error).isprintable(), repr(str(error))
            assert error.file in files
            assert error.reason
            return
    _check_bounds(settings)
    assert settings.log.level in LEVELS
    assert all(0 <= uid <= LAST_ID for uid in settings.allowed_users + settings.admins)
    assert sum(rule.publish is not None for rule in settings.policy) <= MAX_PUBLISH_RULES
    for rule in settings.policy:
        # Only the reader of files says where a rule stands.
        assert rule.origin.number
        assert rule.origin.file in {str(file) for file in files}
        assert rule.name.isprintable()
    keyspace = settings.keyspace
    assert keyspace.separator in {b"/", b"."}
    assert not keyspace.prefix or keyspace.separator == b"/"
    assert hash(settings) == hash(settings)  # nothing in it can be changed behind the bus's back


@contextmanager
def _files(contents: Sequence[bytes]) -> Iterator[list[Path]]:
    """Hold files with these contents, in memory alone."""
    descriptors: list[int] = []
    try:
        for content in contents:
            descriptors.append(os.memfd_create("configuration", os.MFD_CLOEXEC))
            os.write(descriptors[-1], content)
        yield [Path(f"/proc/self/fd/{fd}") for fd in descriptors]
    finally:
        for fd in descriptors:
            os.close(fd)


def _check_bounds(settings: object) -> None:
    """Check that each quantity of *settings*, and of the tables in it, is in the range that its annotation says."""
    for name, hint in get_type_hints(type(settings), include_extras=True).items():
        value = getattr(settings, name)
        for spelling in getattr(hint, "__metadata__", ()):
            if isinstance(spelling, Count | Size | Duration):
                is_unbounded = isinstance(spelling, Bound) and value == NO_BOUND
                assert is_unbounded or spelling.least <= value <= spelling.most, name
        if is_dataclass(value):
            _check_bounds(value)
