"""The settings of a program: the defaults, or what its files say."""

from __future__ import annotations

from pathlib import Path

from sbusd.config.errors import ConfigError
from sbusd.config.faults import Configuration
from sbusd.config.files import configuration_files
from sbusd.config.recorder import RecorderSettings
from sbusd.config.settings import DaemonSettings
from sbusd.protocol.printable import printable


def load_daemon_settings(main_file: Path, *, required: bool = False) -> DaemonSettings:
    """Return the settings of the bus whose main file is *main_file*; where there is no file at all, the defaults.

    *required* says that someone named the file, so that its absence is an error.

    Raises:
        ConfigError: a file cannot be read, is not TOML, has an unknown key, or a value that is not right.
    """
    files = configuration_files(main_file, required=required)
    if not files:
        return DaemonSettings()
    # Imported here: pydantic takes longer to import than all else a bus without a configuration file does to be ready.
    from sbusd.config.documents import read_settings  # noqa: PLC0415

    return read_settings(files, DaemonSettings)


def load_recorder_settings(main_file: Path, *, required: bool = False) -> RecorderSettings:
    """Return the settings of the recorder whose main file is *main_file*; where there is no file at all, the defaults.

    Raises:
        ConfigError: as :func:`load_daemon_settings`.
    """
    files = configuration_files(main_file, required=required)
    if not files:
        return RecorderSettings()
    from sbusd.config.documents import read_settings  # noqa: PLC0415

    return read_settings(files, RecorderSettings)


def load_configuration(main_file: Path, *, required: bool = False, held: Configuration | None = None) -> Configuration:
    """Return what a bus runs with whose main file is *main_file*: a drop-in with faults denies the keys of its rules, and no other.

    *held* is the configuration of a running bus, which reads its files again.

    Raises:
        ConfigError: the main file is wrong, or it was required and is not there.
    """
    files = configuration_files(main_file, required=required)
    if not files:
        return Configuration(DaemonSettings())
    from sbusd.config.tolerance import read_tolerantly  # noqa: PLC0415

    return read_tolerantly(main_file, files, held)


def check_daemon_settings(main_file: Path, *, required: bool = False) -> Configuration:
    """Return what a bus would run with now. Faults are for the caller to report; the bus starts with them.

    Raises:
        ConfigError: as :func:`load_configuration`; or all that the bus would do is to deny every key.
    """
    configuration = load_configuration(main_file, required=required)
    require_open(configuration)
    return configuration


def require_open(configuration: Configuration) -> None:
    """Raise ConfigError if a fault of *configuration* denies every key: a bus that runs keeps what holds instead."""
    for fault in configuration.faults:
        if "" in fault.denied:
            raise ConfigError(fault.file, "", f"{fault.reason}; a bus that starts with it denies every key to everyone")


def describe(configuration: Configuration, main_file: Path) -> str:
    """Return one line that says that a *configuration* without faults is good, and which files it is."""
    return f"configuration is valid: {configuration.file_names or f'no {printable(str(main_file))}, the defaults apply'}"
