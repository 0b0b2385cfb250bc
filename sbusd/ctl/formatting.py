"""Formats values for people: numbers, sizes, durations and times, each one word."""

from __future__ import annotations

from datetime import UTC, datetime

NOTHING = "-"
"""Shown for values that the bus does not report."""

_BINARY = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SPANS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def human_count(number: int | None) -> str:
    """Return a plain number, or ``-`` for None."""
    return NOTHING if number is None else str(number)


def human_plural(number: int, noun: str) -> str:
    """Return a number with its noun in the right form, such as ``1 message`` or ``2 messages``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def human_bytes(number: int | None) -> str:
    """Return a size such as ``512B``, ``1.5KiB`` or ``20MiB``, or ``-`` for None."""
    if number is None:
        return NOTHING
    if abs(number) < 1024:
        return f"{number}B"
    value = float(number)
    for unit in _BINARY:
        value /= 1024
        # 1023.95 and more would be rounded to 1024.0: use the next unit.
        if abs(value) < 1023.95 or unit == _BINARY[-1]:
            break
    digits = f"{value:.1f}".removesuffix(".0")
    return f"{digits}{unit}"


def human_duration(seconds: float | None) -> str:
    """Return a duration in its two largest units, such as ``4d2h``, ``3min7s`` or ``0s``; ``-`` for None.

    A negative duration, after the clock was set back, is ``0s``.
    """
    if seconds is None:
        return NOTHING
    rest = max(0, int(seconds))
    counts: list[tuple[int, str]] = []
    for unit, size in _SPANS:
        count, rest = divmod(rest, size)
        if count or counts:
            counts.append((count, unit))
    return "".join(f"{count}{unit}" for count, unit in counts[:2] if count) or "0s"


def human_microseconds(seconds: float) -> str:
    """Return a short time in microseconds, such as ``63us``."""
    return f"{seconds * 1e6:.0f}us"


def percentile(ascending: list[float], percent: float) -> float:
    """Return the nearest-rank percentile of a sorted list that is not empty; *percent* is above 0, up to 100."""
    rank = -(-len(ascending) * percent // 100)
    return ascending[max(0, int(rank) - 1)]


def compact_bytes(number: float | None) -> str:
    """Return a size in at most five characters, such as ``512``, ``1.5K``, ``1023K`` or ``20M``, in powers of 1024; ``-`` for None."""
    return _compact(number, 1024, "KMGTPE")


def compact_count(number: float | None) -> str:
    """Return a number or a rate in at most five characters, such as ``0.5``, ``99999``, ``123k`` or ``4.5M``; ``-`` for None.

    A number above zero is never shown as ``0``.
    """
    if number is not None and 0 < number < 9.95 and number != int(number):
        return f"{max(0.1, number):.1f}".removesuffix(".0")
    if number is not None and number < 99_999.5:
        return f"{number:.0f}"
    return _compact(number, 1000, "kMGTPE")


def _compact(number: float | None, base: int, units: str) -> str:
    """Return a number in the largest unit in which it is at least 1, with one decimal below 10."""
    if number is None:
        return NOTHING
    value, unit = float(number), ""
    for following in units:
        if value < base - 0.5:
            break
        value, unit = value / base, following
    return f"{value:.1f}".removesuffix(".0") + unit if unit and value < 9.95 else f"{value:.0f}{unit}"


def local_time(time: float) -> str:
    """Return RFC 3339 with microseconds and the local offset."""
    return datetime.fromtimestamp(time, UTC).astimezone().isoformat(timespec="microseconds")


def human_date(time: float) -> str:
    """Return the date of *time*, in seconds since 1970, in UTC; NOTHING if the calendar does not have it."""
    try:
        return datetime.fromtimestamp(time, UTC).date().isoformat()
    except (ValueError, OverflowError, OSError):
        return NOTHING
