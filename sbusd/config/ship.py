"""The settings of sbus-ship, with their defaults. Spec: sbus-ship(8)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from sbusd.config.loading import load_settings
from sbusd.config.quantities import Duration
from sbusd.config.recorder import Folder, HostName


@dataclass(frozen=True, slots=True)
class ShipSettings:
    """``ship.toml``: the settings of one shipper."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    destination: str = ""
    """Location of the remote archive, sbus-record(5); required."""
    archive: Annotated[str, Folder()] = "/var/lib/sbus-recorder/archive"
    """Directory of the local archive."""
    host: Annotated[str, HostName()] = ""
    """The name of this host in the archive; empty means the output of hostname(1)."""
    state: Annotated[str, Folder()] = "/var/lib/sbus-ship"
    """Directory of the list of shipped segments."""
    interval: Annotated[float, Duration(1.0, 86_400.0, "each search lists the index of the archive")] = 30.0
    """Seconds between two searches for new segments."""
    retention: Annotated[float, Duration(0.0, 36_525 * 86_400.0, "0s keeps all segments")] = 0.0
    """Seconds for which a remote segment is kept after the end of its hour; 0 keeps all."""


def load_ship_settings(main_file: Path, *, required: bool = False) -> ShipSettings:
    """Return the settings with the main file *main_file*, or the defaults without a file.

    Raises:
        ConfigError: a file cannot be read, is not TOML, or has an unknown key or an invalid value.
    """
    return load_settings(main_file, ShipSettings, required=required)
