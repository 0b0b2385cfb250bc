from __future__ import annotations

import pytest

from sbusd.broker.connection_settings import MAX_TOKEN_BYTES, apply
from sbusd.dataplane.contract import SoftMode
from sbusd.protocol.errors import ErrorCode, ProtocolError
from sbusd.protocol.packets import Control
from tests.support.wire import message
from tests.support.world import World


@pytest.mark.parametrize("key", [b"", b"echo", b"echo/ON", b"receipt/", b"!/bus/ping", b"tap/maybe"])
def test_other_control_messages_are_not_settings(world: World, key: bytes) -> None:
    assert apply(world.switch, world.connect(), Control(key, b"")) is False


@pytest.mark.parametrize("key", [b"receipt/always", b"receipt/undeliverable"])
@pytest.mark.parametrize("token", [b"x" * (MAX_TOKEN_BYTES + 1), b"a\0b", b"\0"])
def test_an_invalid_token_is_refused(world: World, key: bytes, token: bytes) -> None:
    client = world.connect()
    with pytest.raises(ProtocolError, match="at most 128 bytes and no NUL") as caught:
        apply(world.switch, client, Control(key, token))
    assert caught.value.code is ErrorCode.EINVAL


def test_settings_are_applied(world: World) -> None:
    client = world.connect(b"a")
    for key in (b"echo/off", b"blocking/soft/" + SoftMode.DISCARD.name.lower().encode(), b"order/stack"):
        assert apply(world.switch, client, Control(key, None)) is True
    world.send(client, message(b"a", b"1"))
    world.run()
    assert world.receive(client) == []
    assert apply(world.switch, client, Control(b"receipt/always", None)) is True
    world.send(client, message(b"a", b"2"))
    world.run()
    assert world.receive(client) == [b"CMSG !/bus/receipt\0\x000"]
