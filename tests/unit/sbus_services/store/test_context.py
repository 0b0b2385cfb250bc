"""What a user may have under way: all its ids together have what one user has."""

from __future__ import annotations

from collections import Counter

import pytest

from sbus_programs.config.users import ChargedUsers, SubordinateIds, SubordinateRange
from sbus_services.store.calls.responses import CallError
from sbus_services.store.context import Allowance


def test_several_ids_of_a_user_have_the_allowance_of_one() -> None:
    charged, refusals = ChargedUsers(SubordinateIds([SubordinateRange(100_000, 10, 1001)])), Counter[str]()
    allowance = Allowance("calls", "calls that run", 2, refusals=refusals, charged=charged)
    with allowance.held(1001):
        with allowance.held(100_000):
            with pytest.raises(CallError, match="EDQUOT user 1001 has 2 calls that run"), allowance.held(100_009):
                pass
            with allowance.held(1000):
                charged.ids = SubordinateIds()  # what is held is released from the user that was charged
        with allowance.held(1001), pytest.raises(CallError), allowance.held(1001):
            pass
    assert refusals == {"calls": 2}
