"""The settings of the recorder, with their defaults. Spec: sbus-recorder(8)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from sbus.protocol.packets import MAX_PACKET_BYTES
from sbus_programs.config.loading import load_settings
from sbus_programs.config.quantities import Count, Duration, Size, Spelling, show
from sbus_programs.config.rules import KeyPrefix, Origin

MAX_PAYLOAD_RULES = 1_000
"""Maximum number of rules: the recorder checks each of them once for each new key."""

_FORBID_UNKNOWN = {"extra": "forbid"}

_KEPT_SIZE = Size(0, MAX_PACKET_BYTES, "no payload is longer than a packet")


@dataclass(frozen=True, slots=True)
class Keep(Spelling):
    """How much of a payload is kept: ``whole``, ``none``, or a number of bytes from its start."""

    def parse(self, value: object) -> int | Literal["whole", "none"]:
        """Return the word, or the size in bytes. Raises ValueError if *value* is neither."""
        if value == "whole":
            return "whole"
        if value == "none":
            return "none"
        try:
            return _KEPT_SIZE.parse(value)
        except ValueError as error:
            raise ValueError(f'{error}; or use "whole" or "none"') from None


@dataclass(frozen=True, slots=True)
class Folder(Spelling):
    """The absolute path of a directory."""

    def parse(self, value: object) -> str:
        """Return the path. Raises ValueError if it is not absolute: a service has no useful working directory."""
        if not isinstance(value, str) or "\0" in value or not os.path.isabs(value):
            raise ValueError(f'must be an absolute path, such as "/var/lib/sbus-recorder/archive", not {show(value)}')
        return os.path.normpath(value)


@dataclass(frozen=True, slots=True)
class OptionalFile(Spelling):
    """The absolute path of a file; empty for none."""

    def parse(self, value: object) -> str:
        """Return the path. Raises ValueError if it is not absolute."""
        return "" if value == "" else Folder().parse(value)


@dataclass(frozen=True, slots=True)
class HostName(Spelling):
    """The name of a host in the archive; empty means the name of this host."""

    def parse(self, value: object) -> str:
        """Return the name. Raises ValueError if it would need an escape in a file name."""
        # The record has the exact rule. Here the name must only be safe in a path.
        if not isinstance(value, str) or (value and not value.replace("-", "").replace("_", "").replace(".", "").isalnum()):
            raise ValueError(f'invalid host name {show(value)}: use letters, digits, ".", "-" and "_", or "" for the name of this host')
        if not value.isascii() or len(value) > 64 or value.startswith((".", "-", "_")) or ".." in value or value.endswith("."):
            raise ValueError(f"invalid host name {show(value)}: must begin with a letter or digit, and have at most 64 characters")
        return value


@dataclass(frozen=True, slots=True)
class PayloadRule:
    """One ``[[payloads]]``: how much is kept of payloads with keys that start with ``keys``."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    keys: Annotated[str, KeyPrefix()]
    keep: Annotated[int | Literal["whole", "none"], Keep()]
    origin: Annotated[Origin, Origin()] = field(default_factory=Origin)


@dataclass(frozen=True, slots=True)
class RecorderSettings:
    """``recorder.toml``: the settings of one recorder."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    archive: Annotated[str, Folder()] = "/var/lib/sbus-recorder/archive"
    spool: Annotated[str, Folder()] = "/var/lib/sbus-recorder/spool"
    host: Annotated[str, HostName()] = ""
    pattern: str = ""
    sync_interval: Annotated[float, Duration(0.001, 60.0, "rows that are not yet written are lost if the machine fails")] = 0.2
    sync_rows: Annotated[int, Count(1, 100_000, "pending rows are in memory")] = 1_000
    rotate_interval: Annotated[float, Duration(1.0, 3_600.0, "a segment covers one hour")] = 900.0
    rotate_rows: Annotated[int, Count(1, 10_000_000, "rows are sorted in memory")] = 1_000_000
    rotate_bytes: Annotated[int, Size(1 << 20, 1 << 30, "rows are sorted in memory, which takes three times this size")] = 128 << 20
    disk_quota: Annotated[int, Size(8 << 20, 1 << 50, "a write-ahead and its segment must fit")] = 10 << 30
    retention: Annotated[float, Duration(3_600.0, 36_525 * 86_400.0, "a segment covers one hour")] = 30 * 86_400.0
    shipped: Annotated[str, OptionalFile()] = ""
    keep: Annotated[int | Literal["whole", "none"], Keep()] = "whole"
    payloads: tuple[PayloadRule, ...] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        if len(self.payloads) > MAX_PAYLOAD_RULES:
            raise ValueError(f"too many payloads rules: {len(self.payloads)}, at most {MAX_PAYLOAD_RULES}")
        if "\0" in self.pattern:
            raise ValueError(f"pattern {show(self.pattern)} contains a NUL")
        if self.archive == self.spool:
            raise ValueError("archive and spool must be different directories")
        if self.rotate_bytes * 2 > self.disk_quota:
            raise ValueError("disk_quota must be at least twice rotate_bytes, so that a write-ahead and its segment fit")


def load_recorder_settings(main_file: Path, *, required: bool = False) -> RecorderSettings:
    """Return the settings of the recorder with the main file *main_file*, or the defaults without a file.

    Raises:
        ConfigError: a file cannot be read, is not TOML, or has an unknown key or an invalid value.
    """
    return load_settings(main_file, RecorderSettings, required=required)
