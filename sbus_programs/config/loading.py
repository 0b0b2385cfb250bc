"""Loads the configuration of a program from its files, or the defaults without importing what reads files."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from sbus_programs.config.configuration import Configuration, require_open
from sbus_programs.config.files import configuration_files
from sbus_programs.config.settings import DaemonSettings

Settings = TypeVar("Settings")


def load_settings(main_file: Path, kind: type[Settings], *, required: bool = False) -> Settings:
    """Return the settings of a program with the main file *main_file*, or the defaults of *kind*, a dataclass, without a file.

    *required*: the user named the main file, so it must exist.

    Raises:
        ConfigError: a file cannot be read, is not TOML, or has an unknown key or an invalid value.
    """
    files = configuration_files(main_file, required=required)
    if not files:
        return kind()
    # Imported here: importing pydantic takes longer than the whole start of a bus without a configuration file.
    from sbus_programs.config.documents import read_settings  # noqa: PLC0415

    return read_settings(files, kind)


def load_daemon_settings(main_file: Path, *, required: bool = False) -> DaemonSettings:
    """Return the settings of the bus with the main file *main_file*, or the defaults without a file.

    *required*: the user named the main file, so it must exist.

    Raises:
        ConfigError: a file cannot be read, is not TOML, or has an unknown key or an invalid value.
    """
    return load_settings(main_file, DaemonSettings, required=required)


def load_configuration(main_file: Path, *, required: bool = False, held: Configuration | None = None) -> Configuration:
    """Return the configuration of the bus with the main file *main_file*. A drop-in with a fault denies only the keys of its own rules.

    *held* is the current configuration of a bus that reloads.

    Raises:
        ConfigError: the main file is invalid, or it is required and does not exist.
    """
    files = configuration_files(main_file, required=required)
    if not files:
        return Configuration(DaemonSettings())
    from sbus_programs.config.lenient_reader import read_leniently  # noqa: PLC0415

    return read_leniently(main_file, files, held)


def check_daemon_settings(main_file: Path, *, required: bool = False) -> Configuration:
    """Return the configuration that a bus would start with. The caller reports its faults.

    Raises:
        ConfigError: as :func:`load_configuration`, or the bus would deny every key.
    """
    configuration = load_configuration(main_file, required=required)
    require_open(configuration)
    return configuration
