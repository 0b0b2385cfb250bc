"""The settings of sbus-live(8), with their defaults. Spec: sbus-live(8), CONFIGURATION."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from sbus_programs.config.loading import load_settings
from sbus_programs.config.quantities import Count, Duration, Spelling, show
from sbus_programs.config.rules import Origin

MAX_THRESHOLDS = 100
"""Maximum number of thresholds: each is compared with all subjects of each minute."""

ANOMALY = "anomaly"
"""The rule of the alerts that ``[anomaly]`` causes; no threshold has this name."""

_FORBID_UNKNOWN = {"extra": "forbid"}
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_COUNTERS = "counters have 63 bits"


@dataclass(frozen=True, slots=True)
class RuleName(Spelling):
    """The name of a threshold, which is a segment of the keys of its alerts."""

    def parse(self, value: object) -> str:
        """Return the name. Raises ValueError if it is not valid, or reserved."""
        if not isinstance(value, str) or _NAME.fullmatch(value) is None:
            raise ValueError(f'must be 1 to 64 lower-case letters, digits and "-", such as "flood", not {show(value)}')
        if value == ANOMALY:
            raise ValueError(f"{show(value)} is the name of the alerts of [anomaly]: use another name")
        return value


@dataclass(frozen=True, slots=True)
class Threshold:
    """One ``[[thresholds]]``: a limit for a counter of one minute."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    name: Annotated[str, RuleName()]
    measure: Literal["messages", "bytes", "discarded", "lost", "denials", "slow"]
    raise_at: Annotated[int, Count(1, 1 << 62, _COUNTERS)]
    by: Literal["all", "prefix", "user"] = "all"
    """Whether the counter is that of all messages, of each key prefix, or of each user."""
    clear_at: Annotated[int | None, Count(0, 1 << 62, _COUNTERS)] = None
    """The alert is cleared in a minute with at most this value; None: less than ``raise_at``."""
    origin: Annotated[Origin, Origin()] = field(default_factory=Origin)

    def __post_init__(self) -> None:
        if self.clear_at is not None and self.clear_at >= self.raise_at:
            raise ValueError(f"clear_at must be less than raise_at, {self.raise_at}, not {self.clear_at}")

    @property
    def cleared_at(self) -> int:
        """The largest value that clears the alert."""
        return self.raise_at - 1 if self.clear_at is None else self.clear_at


@dataclass(frozen=True, slots=True)
class Anomaly:
    """``[anomaly]``: when the number of messages of a key prefix is unusual for the hour of the week."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    weeks: Annotated[int, Count(1, 52, "each week is read once an hour")] = 6
    min_weeks: Annotated[int, Count(1, 52, "each week is read once an hour")] = 3
    deviations: Annotated[int, Count(1, 1000, "in standard deviations")] = 6
    min_difference: Annotated[int, Count(1, 1 << 62, _COUNTERS)] = 60

    def __post_init__(self) -> None:
        if self.min_weeks > self.weeks:
            raise ValueError(f"min_weeks must be at most weeks, {self.weeks}, not {self.min_weeks}")


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """``live.toml``: the settings of one job."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    delay: Annotated[float, Duration(1.0, 600.0, "rows arrive some seconds after their minute")] = 10.0
    slow_call: Annotated[float, Duration(0.001, 600.0, "replies are waited for at most 600 seconds")] = 1.0
    thresholds: tuple[Threshold, ...] = field(default_factory=tuple)
    anomaly: Anomaly = field(default_factory=Anomaly)

    def __post_init__(self) -> None:
        if len(self.thresholds) > MAX_THRESHOLDS:
            raise ValueError(f"too many thresholds: {len(self.thresholds)}, at most {MAX_THRESHOLDS}")
        names = [each.name for each in self.thresholds]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two thresholds have the name {show(twice[0])}")


def load_live_settings(main_file: Path, *, required: bool = False) -> LiveSettings:
    """Return the settings with the main file *main_file*, or the defaults without a file.

    Raises:
        ConfigError: a file cannot be read, is not TOML, or has an unknown key or an invalid value.
    """
    return load_settings(main_file, LiveSettings, required=required)
