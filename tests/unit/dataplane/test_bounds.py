"""Numbers that a bus has left are read within their bounds alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
from pydantic import TypeAdapter, ValidationError

from sbusd.dataplane.bounds import Within


@dataclass
class Held:
    number: Annotated[int, Within(1, 10)] = 1
    seconds: Annotated[float, Within(0, 1 << 63)] = 0.0


@pytest.mark.parametrize("text", ['{"number": 1}', '{"number": 9}', '{"seconds": 0}', '{"seconds": 9e18}'])
def test_what_is_within_is_read(text: str) -> None:
    assert isinstance(TypeAdapter(Held).validate_json(text), Held)


@pytest.mark.parametrize(
    "text", ['{"number": 0}', '{"number": 10}', '{"seconds": -1}', '{"seconds": NaN}', '{"seconds": Infinity}', '{"seconds": 1e19}']
)
def test_what_is_not_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="is not in the range"):
        TypeAdapter(Held).validate_json(text)
