"""The settings of sbus-ship, with their defaults. Spec: sbus-ship(8)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from sbus_programs.config.loading import load_settings
from sbus_programs.config.quantities import Duration
from sbus_programs.config.recorder import Folder, HostName


@dataclass(frozen=True, slots=True)
class ShipSettings:
    """``ship.toml``: the settings of one shipper."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    destination: str = ""
    archive: Annotated[str, Folder()] = "/var/lib/sbus-recorder/archive"
    host: Annotated[str, HostName()] = ""
    state: Annotated[str, Folder()] = "/var/lib/sbus-ship"
    interval: Annotated[float, Duration(1.0, 86_400.0, "each search lists the index of the archive")] = 30.0
    retention: Annotated[float, Duration(0.0, 36_525 * 86_400.0, "0s keeps all segments")] = 0.0


def load_ship_settings(main_file: Path, *, required: bool = False) -> ShipSettings:
    """Return the settings with the main file *main_file*, or the defaults without a file.

    Raises:
        ConfigError: a file cannot be read, is not TOML, or has an unknown key or an invalid value.
    """
    return load_settings(main_file, ShipSettings, required=required)
