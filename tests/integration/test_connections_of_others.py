"""A client has the credentials of the process that called connect(2), even if another one uses the connection: see sbus(7)."""

from __future__ import annotations

import json

import pytest

from sbus.protocol import controls
from tests.support.daemons import Daemon
from tests.support.users import FIRST, SECOND
from tests.support.wire import RawClient, error_code, message

pytestmark = pytest.mark.usefixtures("needs_root")


def test_a_connection_that_root_made_is_root_s_in_the_hands_of_a_user(bus: Daemon) -> None:
    key = b"!/cred//0//letters"
    passed, writer = bus.client(), bus.client(SECOND)

    def act() -> tuple[bytes, str]:
        passed.subscribe(key)
        return passed.ask(controls.WHOAMI), json.loads(passed.ask(controls.STATS))["scope"]

    cred, scope = FIRST.call(act)
    assert cred.startswith(b"!/cred/0/0/")
    assert scope == "bus"
    writer.publish(key, b"for root")
    assert writer.barrier() == []
    assert FIRST.call(passed.receive) == message(key, b"for root")


def test_a_connection_that_a_user_made_is_that_user_s_in_the_hands_of_another(bus: Daemon) -> None:
    # The child that connects passes the descriptor on and ends; this process, root's, and the second user only use it.
    passed: RawClient = bus.client(FIRST)
    assert passed.ask(controls.WHOAMI).startswith(b"!/cred/%d/%d/" % (FIRST.gid, FIRST.uid))
    assert SECOND.call(lambda: passed.ask(controls.WHOAMI)).startswith(b"!/cred/%d/%d/" % (FIRST.gid, FIRST.uid))
    assert json.loads(passed.ask(controls.STATS))["scope"] == "connection"
    passed.subscribe(b"!/cred//%d//x" % SECOND.uid)
    (reported,) = passed.receive_to_end()
    assert error_code(reported) == "EACCES"
