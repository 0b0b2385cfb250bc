"""Where configuration files are. Spec: sbusd.toml(5); the XDG base directory specification for a user's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from sbusd.config.errors import ConfigError

SYSTEM_FOLDER = Path("/etc/sbus")


def default_main_file(name: str = "sbusd.toml", *, user_bus: bool = False, environment: Mapping[str, str] | None = None) -> Path:
    """Return the main file *name* of the system's bus or of the user's own: ``$XDG_CONFIG_HOME/sbus``, or ``~/.config/sbus``."""
    if not user_bus:
        return SYSTEM_FOLDER / name
    environment = os.environ if environment is None else environment
    home = environment.get("XDG_CONFIG_HOME", "")
    # The specification says that a relative path there is to be ignored.
    folder = Path(home) if os.path.isabs(home) else Path(environment.get("HOME") or "/", ".config")
    return folder / "sbus" / name


def configuration_files(main_file: Path, *, required: bool = False) -> list[Path]:
    """Return the files that are there and count, in the order in which they are read: *main_file*, then its drop-ins by name.

    Drop-ins are the ``*.toml`` in the folder that is called as *main_file* is, with ``.d`` behind it. *required* says that
    someone named the main file, so it must be there.

    Raises:
        ConfigError: the main file is required and not there, or one of the folders cannot be searched.
    """
    folder = main_file.with_name(main_file.name + ".d")
    found = [main_file] if required or _is_there(main_file) else []
    if required and not _is_there(main_file):
        raise ConfigError(main_file, "", "there is no such file; name one that exists, or none for the default")
    try:
        # A name that begins with a dot is an editor's or a package manager's, half written.
        names = sorted(name for name in os.listdir(folder) if name.endswith(".toml") and not name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        names = []
    except OSError as error:
        raise ConfigError(folder, "", f"cannot be read: {error.strerror}; let the bus's user read it") from None
    return found + [folder / name for name in names]


def _is_there(file: Path) -> bool:
    """Return whether something is called *file*, also a link that leads nowhere: that is a mistake to be told, not an absence."""
    try:
        os.lstat(file)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise ConfigError(file, "", f"cannot be read: {error.strerror}; let the bus's user read it") from None
    return True
