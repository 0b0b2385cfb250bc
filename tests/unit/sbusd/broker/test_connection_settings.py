from __future__ import annotations

import pytest

from sbus.protocol.errors import ErrorCode, ProtocolError
from sbus.protocol.packets import Control
from sbusd.broker.connection_settings import MAX_TOKEN_BYTES, apply
from sbusd.dataplane.contract import SoftMode
from tests.support.switch_harness import SwitchHarness
from tests.support.wire import message


@pytest.mark.parametrize("key", [b"", b"echo", b"echo/ON", b"receipt/", b"!/bus/ping", b"tap/maybe"])
def test_other_control_messages_are_not_settings(harness: SwitchHarness, key: bytes) -> None:
    assert apply(harness.switch, harness.connect(), Control(key, b"")) is False


@pytest.mark.parametrize("key", [b"receipt/always", b"receipt/undeliverable"])
@pytest.mark.parametrize("token", [b"x" * (MAX_TOKEN_BYTES + 1), b"a\0b", b"\0"])
def test_an_invalid_token_is_refused(harness: SwitchHarness, key: bytes, token: bytes) -> None:
    client = harness.connect()
    with pytest.raises(ProtocolError, match="at most 128 bytes and no NUL") as caught:
        apply(harness.switch, client, Control(key, token))
    assert caught.value.code is ErrorCode.EINVAL


def test_settings_are_applied(harness: SwitchHarness) -> None:
    client = harness.connect(b"a")
    for key in (b"echo/off", b"blocking/soft/" + SoftMode.DISCARD.name.lower().encode(), b"order/stack"):
        assert apply(harness.switch, client, Control(key, None)) is True
    harness.send(client, message(b"a", b"1"))
    harness.run()
    assert harness.receive(client) == []
    assert apply(harness.switch, client, Control(b"receipt/always", None)) is True
    harness.send(client, message(b"a", b"2"))
    harness.run()
    assert harness.receive(client) == [b"CMSG !/bus/receipt\0\x000"]
