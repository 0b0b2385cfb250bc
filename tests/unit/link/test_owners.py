"""The user who is charged for a message."""

from __future__ import annotations

import pytest

from sbusd.config.users import ChargedUsers, SubordinateIds, SubordinateRange
from sbusd.link.owners import Owners


@pytest.mark.parametrize(
    ("sender", "owner"),
    [
        (b"!/cred/100/1000/7", 1000),
        (b"!/cred/5/6/7/!/cred/100/1000/7", 1000),
        (b"!/cred/100/100003/7", 1000),
        (b"!/cred/0/0/1", 0),
        # A service, for a user of this host
        (b"!/cred/990/990/7/!/store/!/cred/100/1001/9", 1001),
        (b"!/cred/990/990/7/!/store/!/cred/100/100003/9", 1000),
        # A service, for others
        (b"!/cred/990/990/7/!/host/beta/!/cred/100/1001/9", 990),
        (b"!/cred/990/990/7/!/twin/1002/!/cred/100/1001/9", 990),
    ],
)
def test_the_user_behind_a_message_is_charged(sender: bytes, owner: int) -> None:
    charged = ChargedUsers(SubordinateIds([SubordinateRange(100_000, 10, 1000)]))
    assert Owners(charged.of).of(sender) == owner
