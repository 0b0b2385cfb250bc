"""The settings of a program: the defaults, or those in its files."""

from __future__ import annotations

from pathlib import Path

from sbusd.config.faults import Configuration
from sbusd.config.files import ConfigError, configuration_files
from sbusd.config.recorder import RecorderSettings
from sbusd.config.settings import DaemonSettings
from sbusd.protocol.printable import printable


def load_daemon_settings(main_file: Path, *, required: bool = False) -> DaemonSettings:
    """Return the settings of the bus with the main file *main_file*, or the defaults without a file.

    *required*: the user named the main file, so it must exist.

    Raises:
        ConfigError: a file cannot be read, is not TOML, or has an unknown key or an invalid value.
    """
    files = configuration_files(main_file, required=required)
    if not files:
        return DaemonSettings()
    # Imported here: importing pydantic takes longer than the whole start of a bus without a configuration file.
    from sbusd.config.documents import read_settings  # noqa: PLC0415

    return read_settings(files, DaemonSettings)


def load_recorder_settings(main_file: Path, *, required: bool = False) -> RecorderSettings:
    """Return the settings of the recorder with the main file *main_file*, or the defaults without a file.

    Raises:
        ConfigError: as :func:`load_daemon_settings`.
    """
    files = configuration_files(main_file, required=required)
    if not files:
        return RecorderSettings()
    from sbusd.config.documents import read_settings  # noqa: PLC0415

    return read_settings(files, RecorderSettings)


def load_configuration(main_file: Path, *, required: bool = False, held: Configuration | None = None) -> Configuration:
    """Return the configuration of the bus with the main file *main_file*. A drop-in with a fault denies only the keys of its own rules.

    *held* is the current configuration of a bus that reloads.

    Raises:
        ConfigError: the main file is invalid, or it is required and does not exist.
    """
    files = configuration_files(main_file, required=required)
    if not files:
        return Configuration(DaemonSettings())
    from sbusd.config.lenient_reader import read_leniently  # noqa: PLC0415

    return read_leniently(main_file, files, held)


def check_daemon_settings(main_file: Path, *, required: bool = False) -> Configuration:
    """Return the configuration that a bus would start with. The caller reports its faults.

    Raises:
        ConfigError: as :func:`load_configuration`, or the bus would deny every key.
    """
    configuration = load_configuration(main_file, required=required)
    require_open(configuration)
    return configuration


def require_open(configuration: Configuration) -> None:
    """Raise ConfigError if a fault of *configuration* denies every key. A running bus keeps its current configuration instead."""
    for fault in configuration.faults:
        if "" in fault.denied:
            raise ConfigError(fault.file, "", f"{fault.reason}; a bus that starts with it denies every key to everyone")


def describe(configuration: Configuration, main_file: Path) -> str:
    """Return one line that says that *configuration* is valid, with its files."""
    return f"configuration is valid: {configuration.file_names or f'no {printable(str(main_file))}, the defaults apply'}"
