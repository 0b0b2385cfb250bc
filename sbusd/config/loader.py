"""The settings of a program: the defaults, or what its files say."""

from __future__ import annotations

from pathlib import Path

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


def check_daemon_settings(main_file: Path, *, required: bool = False) -> str:
    """Return one line that says that the configuration is good, and which files it is.

    Raises:
        ConfigError: as :func:`load_daemon_settings`.
    """
    load_daemon_settings(main_file, required=required)
    files = configuration_files(main_file, required=required)
    names = " ".join(printable(str(file)) for file in files)
    return f"configuration is good: {names or f'no {printable(str(main_file))}, so the defaults hold'}"
