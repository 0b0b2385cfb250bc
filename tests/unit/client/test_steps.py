"""Ends of time."""

from __future__ import annotations

import pytest

from sbusd.client.errors import TimedOut
from sbusd.client.steps import Deadline


def test_no_end() -> None:
    deadline = Deadline("it", None)
    assert deadline.remaining() is None
    deadline.check()


def test_an_end_ahead() -> None:
    deadline = Deadline("it", 1000.0)
    remaining = deadline.remaining()
    assert remaining is not None
    assert 0 < remaining <= 1000.0
    deadline.check()


def test_an_end_that_has_come() -> None:
    deadline = Deadline("it", 0.0)
    assert deadline.remaining() == 0.0
    with pytest.raises(TimedOut, match="it took longer than 0 s") as caught:
        deadline.check()
    assert isinstance(caught.value, TimeoutError)
