"""The members of the JSON object of a call, each checked: a wrong one fails the call with its name and what is valid."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sbus.protocol.keys import MAX_KEY_BYTES, bytes_of
from sbus.protocol.printable import printable
from sbus_services.store.calls.responses import CallError

MAX_SEQ = (1 << 63) - 1
MAX_NAME_BYTES = 64
MAX_LIST = 256
"""Longest list in a request."""


class Fields:
    """The members *values* of a request; *where* precedes their names in errors."""

    def __init__(self, values: Mapping[str, Any], known: Collection[str], where: str = "") -> None:
        """Raises CallError if there is a member that is not *known*."""
        self._values = values
        self._where = where
        for name in values:
            if name not in known:
                words = ", ".join(sorted(known)) or "none"
                raise CallError("EINVAL", f"{where}unknown member {printable(name, 64)!r}; valid are: {words}")

    def __contains__(self, name: str) -> bool:
        """Return whether the member is there and not null."""
        return self._values.get(name) is not None

    def error(self, name: str, valid: str) -> CallError:
        """Return the error that the member must be *valid*."""
        if name not in self:
            return CallError("EINVAL", f"{self._where}{name} is missing: it must be {valid}")
        return CallError("EINVAL", f"{self._where}{name} must be {valid}, not {printable(repr(self._values[name]), 64)}")

    def name(self, name: str) -> str:
        """Return a required name of a stream, queue or reader."""
        value = self._values.get(name)
        if not isinstance(value, str) or not value.isprintable() or not 0 < len(value.encode()) <= MAX_NAME_BYTES:
            raise self.error(name, f"a printable name of 1 to {MAX_NAME_BYTES} bytes")
        return value

    def text(self, name: str, max_bytes: int) -> str:
        """Return a text, empty by default."""
        value = self._values.get(name)
        if value is None:
            return ""
        if not isinstance(value, str) or len(value.encode("utf-8", "surrogatepass")) > max_bytes:
            raise self.error(name, f"a text of at most {max_bytes} bytes")
        return value

    def pattern(self, name: str) -> bytes:
        """Return a key or pattern, empty by default."""
        return self._key(name, self._values.get(name, ""))

    def patterns(self, name: str, most: int) -> list[bytes]:
        """Return a required list of patterns or keys, or the one in a text."""
        value = self._values.get(name)
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not 0 < len(values) <= most:
            raise self.error(name, f"a list of 1 to {most} keys")
        return [self._key(name, each) for each in values]

    def number(self, name: str, default: int, low: int, high: int) -> int:
        """Return an integer."""
        value = self._values.get(name, default)
        if value is None:
            return default
        if type(value) is not int or not low <= value <= high:
            raise self.error(name, f"an integer from {low} to {high}")
        return value

    def numbers(self, name: str) -> list[int]:
        """Return a required list of positive integers, such as leases."""
        value = self._values.get(name)
        if (
            not isinstance(value, list)
            or not 0 < len(value) <= MAX_LIST
            or not all(type(each) is int and 0 < each <= MAX_SEQ for each in value)
        ):
            raise self.error(name, f"a list of 1 to {MAX_LIST} positive integers")
        return value

    def milliseconds(self, name: str, high: float, low: float = 0.0) -> int | None:
        """Return a time in seconds as milliseconds; None if it is not there."""
        value = self._values.get(name)
        if value is None:
            return None
        if type(value) not in (int, float) or not low <= value <= high:  # also without NaN and infinity, and for any integer
            raise self.error(name, f"a number of seconds from {low:g} to {high:g}")
        seconds: float = value
        return round(seconds * 1000)

    def flag(self, name: str) -> bool:
        """Return a truth value, False by default."""
        value = self._values.get(name, False)
        if not isinstance(value, bool):
            raise self.error(name, "true or false")
        return value

    def choice(self, name: str, valid: tuple[str, ...]) -> str:
        """Return a required text that is one of *valid*."""
        value = self._values.get(name)
        if value not in valid:
            raise self.error(name, "one of: " + ", ".join(valid))
        return str(value)

    def raw(self, name: str) -> Any:
        """Return the member as it is; None if it is not there."""
        return self._values.get(name)

    def _key(self, name: str, value: object) -> bytes:
        if not isinstance(value, str) or "\0" in value:
            raise self.error(name, f"a key of at most {MAX_KEY_BYTES} bytes without NUL")
        try:
            key = bytes_of(value)
        except ValueError:
            raise self.error(name, "a key that is UTF-8") from None
        if len(key) > MAX_KEY_BYTES:
            raise CallError("EINVAL", f"{self._where}{name} has {len(key)} bytes, at most {MAX_KEY_BYTES} are valid")
        return key
