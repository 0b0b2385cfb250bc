"""The JSON objects with which the bus responds to ``!/bus/stats``, ``!/bus/connections`` and others. Spec: sbus-protocol(7) §6."""

from __future__ import annotations

import json
from collections.abc import Mapping

from sbus.protocol.errors import SbusError

JsonObject = Mapping[str, object]


class BadResponseError(SbusError):
    """The response to a control message violates the protocol."""

    def __init__(self, key: bytes, what: str) -> None:
        super().__init__(
            f"invalid response to {key.decode('ascii', 'backslashreplace')}: {what}; check the version of the bus: sbusctl doctor"
        )


def parse_document(key: bytes, answer: bytes) -> JsonObject:
    """Return the JSON object *answer*, the response to *key*. Raises BadResponseError if it is something else."""
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError):
        raise BadResponseError(key, "not JSON") from None
    if not isinstance(value, dict):
        raise BadResponseError(key, "not a JSON object")
    return value
