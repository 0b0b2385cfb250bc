"""Where configuration files are. Spec: sbusd.toml(5); the XDG base directory specification for a user's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from sbusd.config.errors import ConfigError

SYSTEM_FOLDER = Path("/etc/sbus")

OTHER_FOLDERS = (Path("/run/sbus"), Path("/usr/lib/sbus"))
"""Where drop-ins of the system's files are looked for besides: those of this boot, and those of packages. Source: systemd.unit(5)."""


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

    Drop-ins are the ``*.toml`` in the folders of :func:`drop_in_folders`. Of those with one name only the first counts, so an
    administrator's file takes the place of a package's, and an empty one, or a link to /dev/null, masks it. *required* says that
    someone named the main file, so it must be there.

    A folder that cannot be searched stands in the list itself, before the drop-ins, for its files can have been the first of them.
    Whoever reads it gets the error.

    Raises:
        ConfigError: the main file is required and not there, or cannot be looked for.
    """
    found = [main_file] if required or _is_there(main_file) else []
    if required and not _is_there(main_file):
        raise ConfigError(main_file, "", "no such file; name an existing file, or omit the option to use the default")
    drop_ins: dict[str, Path] = {}
    for folder in drop_in_folders(main_file):
        for file in _drop_ins(folder):
            if file == folder:
                found.append(folder)
            else:
                drop_ins.setdefault(file.name, file)
    return found + [drop_ins[name] for name in sorted(drop_ins)]


def drop_in_folders(main_file: Path) -> list[Path]:
    """Return the folders with drop-ins of *main_file*, the most important one first: all are called as it is, with ``.d`` behind.

    A file of the system, in /etc/sbus, has folders of that name in /run/sbus and /usr/lib/sbus too; any other has the one beside it.
    """
    own = main_file.with_name(main_file.name + ".d")
    return [own, *(folder / own.name for folder in OTHER_FOLDERS if main_file.parent == SYSTEM_FOLDER)]


def overridden(main_file: Path, file: Path) -> list[Path]:
    """Return the drop-ins of *main_file* that do not count because *file* has their name."""
    folders = drop_in_folders(main_file)
    later = folders[folders.index(file.parent) + 1 :] if file.parent in folders else []
    return [each for folder in later for each in _drop_ins(folder) if each.name == file.name]


def _drop_ins(folder: Path) -> list[Path]:
    """Return the drop-ins in *folder*, or the folder itself if it cannot be searched."""
    try:
        # A name that begins with a dot is an editor's or a package manager's, half written.
        return [folder / name for name in os.listdir(folder) if name.endswith(".toml") and not name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError:
        return [folder]


def _is_there(file: Path) -> bool:
    """Return whether something is called *file*, also a link that leads nowhere: that is a mistake to be told, not an absence."""
    try:
        os.lstat(file)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise ConfigError(file, "", f"cannot read it: {error.strerror}; let the user of the service read it") from None
    return True
