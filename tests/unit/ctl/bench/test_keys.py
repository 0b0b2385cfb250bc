"""The key of a bench is the user's own."""

from __future__ import annotations

import re

import pytest

from sbusd.ctl.bench.keys import private_key


@pytest.mark.parametrize("prefix", [b"", b"!/cred/100/1000/1111/"])
def test_a_key_names_the_user_alone_and_cannot_be_guessed(prefix: bytes) -> None:
    key = private_key(prefix + b"!/cred/1000/1001/19211")
    assert re.fullmatch(re.escape(prefix) + rb"!/cred//1001//bench/[0-9a-f]{32}", key)
    assert key != private_key(prefix + b"!/cred/1000/1001/19211")
