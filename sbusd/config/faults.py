"""What is wrong with a configuration that a bus nevertheless runs with, and what that closes. Spec: sbusd.toml(5), FAULTS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sbusd.config.errors import PATH_MAX, ConfigError
from sbusd.config.quantities import show
from sbusd.config.settings import DaemonSettings
from sbusd.protocol.printable import printable

SHOWN_PREFIXES = 8
"""How many prefixes a line names: more do not fit on a screen, and the file has them."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something in ``file`` that cannot be used; ``reason`` is printable, and begins with the key if one is to blame."""

    file: Path
    reason: str
    denied: tuple[str, ...] = ()
    """Prefixes of the keys that are denied to everyone until the fault is corrected; ``""`` is every key."""

    def __str__(self) -> str:
        """Return one line: file, reason, and what is denied meanwhile."""
        return f"{printable(str(self.file), PATH_MAX)}: {self.reason}{self._consequence}"

    @classmethod
    def of(cls, error: ConfigError, denied: tuple[str, ...]) -> Fault:
        """Return the fault of which *error* tells."""
        return cls(error.file, f"{error.key}: {error.reason}" if error.key else error.reason, denied)

    @property
    def _consequence(self) -> str:
        """What is denied, as the end of a line."""
        if not self.denied:
            return ""
        if "" in self.denied:
            return "; until this is corrected, all keys are denied to everyone"
        more = len(self.denied) - SHOWN_PREFIXES
        names = ", ".join(show(prefix) for prefix in self.denied[:SHOWN_PREFIXES]) + (f" and {more} more" if more > 0 else "")
        return f"; until this is corrected, keys that begin with {names} are denied to everyone"


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings that a bus runs with, the files that they are from, and what could not be used of these."""

    settings: DaemonSettings
    files: tuple[Path, ...] = ()
    faults: tuple[Fault, ...] = ()
    allowed_users: Mapping[Path, Sequence[int | str]] = field(default_factory=dict)
    """The ``allowed_users`` of each file that names some: as it has them, or had them before it had a fault."""

    @property
    def closes_everything(self) -> bool:
        """Whether a fault denies every key, because nobody knows what its file was about."""
        return any("" in fault.denied for fault in self.faults)

    @property
    def file_names(self) -> str:
        """The files in one line; empty if there are none."""
        return " ".join(printable(str(file)) for file in self.files)


def summary(faults: Sequence[Fault]) -> str:
    """Return in a few words that there are *faults*, for the status of a service; empty if there are none."""
    if not faults:
        return ""
    files = sorted({printable(fault.file.name, 60) for fault in faults})
    shown = ", ".join(files[:3]) + (", …" if len(files) > 3 else "")
    return f"configuration faults: {len(faults)} ({shown})"
