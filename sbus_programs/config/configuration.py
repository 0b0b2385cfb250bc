"""The configuration of a bus: its settings, from the defaults or from files, and the faults of these files.

A bus can run with some faults. Each of them denies something until it is corrected. Spec: sbusd.toml(5), FAULTS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sbus.protocol.printable import printable
from sbus_programs.config.files import PATH_MAX, ConfigError
from sbus_programs.config.quantities import show
from sbus_programs.config.settings import DaemonSettings

SHOWN_PREFIXES = 8
"""Maximum number of prefixes in a line: more do not fit on a screen, and the file has them."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in ``file``; ``reason`` is printable, and starts with the key if there is one."""

    file: Path
    reason: str
    denied: tuple[str, ...] = ()
    """Prefixes of the keys that are denied to all users until the fault is corrected; ``""`` means every key."""

    def __str__(self) -> str:
        """Return one line: file, reason, and the denied keys."""
        return f"{printable(str(self.file), PATH_MAX)}: {self.reason}{self._consequence}"

    def shown(self, limit: int) -> str:
        """Return the line as :meth:`ConfigError.shown` does."""
        return ConfigError(self.file, "", f"{self.reason}{self._consequence}").shown(limit)

    @classmethod
    def of(cls, error: ConfigError, denied: tuple[str, ...]) -> Fault:
        """Return the fault for *error*."""
        return cls(error.file, f"{error.key}: {error.reason}" if error.key else error.reason, denied)

    @property
    def _consequence(self) -> str:
        """The denied keys, as the end of a line."""
        if not self.denied:
            return ""
        if "" in self.denied:
            return "; until this is corrected, all keys are denied to everyone"
        more = len(self.denied) - SHOWN_PREFIXES
        names = ", ".join(show(prefix) for prefix in self.denied[:SHOWN_PREFIXES]) + (f" and {more} more" if more > 0 else "")
        return f"; until this is corrected, keys that begin with {names} are denied to everyone"


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings of a bus, their files, and the faults of these files."""

    settings: DaemonSettings
    files: tuple[Path, ...] = ()
    faults: tuple[Fault, ...] = ()
    allowed_users: Mapping[Path, Sequence[int | str]] = field(default_factory=dict)
    """The ``allowed_users`` of each file that has some; if the file has a fault, those that it had before."""

    @property
    def file_names(self) -> str:
        """The files in one line; empty if there are none."""
        return " ".join(printable(str(file), PATH_MAX) for file in self.files)


def summary(faults: Sequence[Fault]) -> str:
    """Return a short text about *faults* for the status of a service; empty if there are none."""
    if not faults:
        return ""
    files = sorted({printable(fault.file.name, 60) for fault in faults})
    shown = ", ".join(files[:3]) + (", …" if len(files) > 3 else "")
    return f"configuration faults: {len(faults)} ({shown})"


def require_open(configuration: Configuration) -> None:
    """Raise ConfigError if a fault of *configuration* denies every key. A running bus keeps its current configuration instead."""
    for fault in configuration.faults:
        if "" in fault.denied:
            raise ConfigError(fault.file, "", f"{fault.reason}; a bus that starts with it denies every key to everyone")


def describe(configuration: Configuration, main_file: Path, reader: str = "") -> str:
    """Return one line that says that *configuration* is valid, with its files, and the user *reader* that has read them for this."""
    who = f" for the user {reader}" if reader else ""
    return f"configuration is valid{who}: {configuration.file_names or f'no {printable(str(main_file))}, the defaults apply'}"
