"""Rules for messages of some users whose keys every user may publish to: messages of the others cost the trigger work for nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable

from sbusd.client import Bus
from sbusd.client.errors import SbusError
from sbusd.config.trigger import EVERY_USER, TriggerRule
from sbusd.protocol import controls

ANSWER_SECONDS = 5.0


def warnings(bus: str, rules: Iterable[TriggerRule]) -> list[str]:
    """Return one line for each of *rules* with keys that a user whom no rule of *bus* names may publish to.

    If the bus is not available, the only line says so.
    """
    closed = [rule for rule in rules if rule.when == "message" and EVERY_USER not in rule.senders]
    if not closed:
        return []
    try:
        with Bus.connect(bus, timeout=ANSWER_SECONDS, name="sbus-trigger check") as asking:
            found = [(rule.title, [key for key in rule.keys if _is_open(asking, key)]) for rule in closed]
    except (SbusError, OSError, ValueError, KeyError, TypeError) as error:
        return [f"cannot check who may publish to the keys of the rules: {error}"]
    return [
        f"rule {title}: every user may publish to {', '.join(keys)}: add a [[policy]] to sbusd.toml that permits only the users in from"
        for title, keys in found
        if keys
    ]


def _is_open(bus: Bus, pattern: str) -> bool:
    """Return whether a user whom no rule names may publish to a key that *pattern* matches. Raises SbusError, ValueError, KeyError."""
    key = pattern.replace("*", "x") + ("x" if pattern.endswith("/") or not pattern else "")
    answer = json.loads(bus.control(controls.EXPLAIN, b"\0publish\0" + key.encode()))
    return bool(answer["allowed"])
