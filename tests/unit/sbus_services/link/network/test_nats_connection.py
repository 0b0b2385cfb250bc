"""A connection to a server that sends anything: it ends with a reason, and its buffers stay bounded."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Awaitable, Callable

import pytest

from sbus_services.link.network.counters import NetworkCounters
from sbus_services.link.network.credential_files import sign
from sbus_services.link.network.nats_connection import ConnectFailedError, Credentials, NatsConnection
from sbus_services.link.network.streams import Stall
from tests.support.link_networks import Gate, RecordedEvents

INFO = b'INFO {"headers":true,"max_payload":1000,"version":"2.9.10"}\r\n'


class Scenario:
    """A connection to a server that sends INFO, PONG, and then what the test gives."""

    def __init__(self, info: bytes = INFO, credentials: Credentials = Credentials(), reply: bytes = b"PONG\r\n") -> None:  # noqa: B008
        self.credentials = credentials
        self.tls: ssl.SSLContext | None = None
        self.introduction: dict[str, object] = {}
        self._reply = reply
        self.events = RecordedEvents()
        self.counters = NetworkCounters()
        self._info = info

    async def run(self, use: Callable[[NatsConnection, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> None:
        """Connect, and call *use* with the connection and the streams of the server."""
        accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        served: list[asyncio.StreamWriter] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            served.append(writer)
            writer.write(self._info)
            while (line := await reader.readline()) and not line.startswith(b"PING"):
                if line.startswith(b"CONNECT "):
                    self.introduction = json.loads(line[8:])
            writer.write(self._reply)
            await accepted.put((reader, writer))

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        connection = NatsConnection(self.events, self.counters, Stall(Gate().writable, self.counters), self.tls)
        try:
            await connection.open(f"nats://127.0.0.1:{port}", "alpha", self.credentials)
            await use(connection, *await accepted.get())
        finally:
            connection.abort()
            server.close()
            for writer in served:
                writer.transport.abort()
            await asyncio.sleep(0.01)  # the loop closes the sockets

    def end_after(self, sent: bytes) -> str:
        """Return why the connection ended after the server has sent *sent*."""
        reasons = []

        async def use(connection: NatsConnection, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(sent)
            reasons.append(await connection.ended)

        asyncio.run(self.run(use))
        return reasons[0]


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (b"MSG a 1 2000\r\n", "announced a message of 2000 bytes; its maximum is 1000"),
        (b"HMSG a 1 18 99999999\r\n", "announced a message of 99999999 bytes"),
        (b"MSG a 1 " + b"9" * 5_000 + b"\r\n", "invalid bytes"),
        (b"MSG a 1 1\r\nxxx", "no line end after a message of 1 bytes"),
        (b"x" * 100_000, "a line of more than 65536 bytes"),
        (b"what\r\n", "invalid bytes"),
        (b"-ERR \r\n", "invalid bytes"),
        (b"INFO {\r\n", "invalid bytes"),
        (b"INFO " + b"[" * 60_000 + b"\r\n", "invalid bytes"),
    ],
)
def test_invalid_bytes_end_the_connection(sent: bytes, says: str) -> None:
    assert says in Scenario().end_after(sent)


def test_messages_and_responses_stay_in_order() -> None:
    scenario = Scenario()

    async def use(connection: NatsConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection.send_ping(5)
        connection.send_ping(None)
        assert await reader.readuntil(b"PING\r\nPING\r\n")
        writer.write(b"MSG a 1 1\r\nx\r\nPONG\r\nHMSG b 2 18 19\r\nNATS/1.0\r\nS: h\r\n\r\ny\r\n")
        writer.write(b"PONG\r\nPONG\r\n-ERR 'Permissions Violation'\r\nMSG c 3 0\r\n\r\n")
        writer.close()
        await connection.ended

    asyncio.run(scenario.run(use))
    assert scenario.events.all == [
        ("received", "a", b"", b"x"),
        ("barrier", 5),
        ("received", "b", b"h", b"y"),
        ("rejected", "Permissions Violation"),
        ("received", "c", b"", b""),
    ]


def test_other_headers_are_not_heads_and_other_subjects_are_not_delivered() -> None:
    scenario = Scenario()

    async def use(connection: NatsConnection, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HMSG a 1 21 21\r\nNATS/1.0\r\nOther: \r\n\r\n\r\nMSG \xff 1 0\r\n\r\nMSG b 1 0\r\n\r\n")
        writer.close()
        await connection.ended

    asyncio.run(scenario.run(use))
    assert scenario.events.messages == [("a", b"", b""), ("b", b"", b"")]


def test_the_error_of_the_server_is_the_reason_for_the_end() -> None:
    scenario = Scenario()

    async def use(connection: NatsConnection, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"-ERR 'Slow Consumer'\r\n")
        writer.close()
        assert await connection.ended == "the server said: Slow Consumer"

    asyncio.run(scenario.run(use))


@pytest.mark.parametrize(
    ("info", "says"),
    [
        (b'INFO {"headers":true,"max_payload":1000,"tls_required":true}\r\n', "the server requires TLS; set tls"),
        (b'INFO {"max_payload":1000}\r\n', "does not know headers"),
        (b"INFO []\r\n", "invalid bytes: INFO"),
        (b"INFO {\r\n", "invalid bytes: INFO"),
        (b"HTTP/1.1 400 Bad Request\r\n", "invalid bytes: HTTP/1.1 400 Bad Request"),
        (b"PING\r\n", "does not begin with INFO"),
        (b"x" * 200_000, "a line of more than 65536 bytes"),
    ],
)
def test_a_server_that_is_not_one_is_refused(info: bytes, says: str) -> None:
    async def use(*_: object) -> None:
        pytest.fail("connected")

    with pytest.raises(ConnectFailedError, match=says):
        asyncio.run(Scenario(info).run(use))


def test_a_server_that_closes_or_refuses_is_a_failure_with_its_words() -> None:
    async def use(*_: object) -> None:
        pytest.fail("connected")

    with pytest.raises(ConnectFailedError, match="the server said: Authorization Violation"):
        asyncio.run(Scenario(reply=b"-ERR 'Authorization Violation'\r\n").run(use))


def test_the_client_introduces_itself() -> None:
    scenario = Scenario(credentials=Credentials("alpha", "secret"))

    async def use(*_: object) -> None:
        """It is connected."""

    asyncio.run(scenario.run(use))
    expected = {"name": "alpha", "user": "alpha", "pass": "secret", "headers": True, "verbose": False, "echo": False, "tls_required": False}
    assert expected.items() <= scenario.introduction.items()


def test_an_nkey_signs_the_nonce_of_the_server() -> None:
    seed = "SUAAAAICAMCAKBQHBAEQUCYMBUHA6EARCIJRIFIWC4MBSGQ3DQOR4H776Y"
    info = INFO.replace(b"}", b',"nonce":"abc"}')
    scenario = Scenario(info, Credentials(seed=seed))

    async def use(*_: object) -> None:
        """It is connected."""

    asyncio.run(scenario.run(use))
    assert (scenario.introduction["nkey"], scenario.introduction["sig"]) == sign(seed, b"abc")
    with pytest.raises(ConnectFailedError, match="does not use nkeys"):
        asyncio.run(Scenario(credentials=Credentials(seed=seed)).run(use))
    with pytest.raises(ConnectFailedError, match="begin with SU"):
        asyncio.run(Scenario(info, Credentials(seed="x")).run(use))


def test_nothing_is_accepted_before_tls() -> None:
    """A third party between client and server could send it."""

    async def use(*_: object) -> None:
        pytest.fail("connected")

    info = b'INFO {"headers":true,"max_payload":1000,"tls_required":true}\r\n'
    for early in (b"PONG\r\n", b"MSG a 1"):
        scenario = Scenario(info + early)
        scenario.tls = ssl.create_default_context()
        with pytest.raises(ConnectFailedError, match="something before TLS"):
            asyncio.run(scenario.run(use))


def test_users_share_what_waits_for_a_server_that_does_not_read() -> None:
    """Of the user with the most, the newest messages are dropped. Other commands are not. What is dropped was not sent."""
    scenario = Scenario()
    bodies: list[bytes] = []

    async def use(connection: NatsConnection, reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        dropped = 0
        for number in range(40):
            assert connection.send_message("s.R.m.alpha.a", b"", b"%03d" % number + bytes(900), 1001)
            dropped += connection.drop(10_000)
        connection.send(b"SUB x 1\r\n")
        for number in range(100, 105):
            assert connection.send_message("s.R.m.alpha.a", b"", b"%03d" % number + bytes(900), 1000)
            dropped += connection.drop(10_000)
        assert connection.pending_bytes <= 10_000
        connection.send(b"END\r\n")
        sent = await reader.readuntil(b"END\r\n")
        assert b"SUB x 1" in sent
        bodies.extend(re.findall(rb"(\d{3})\0{900}", sent))
        assert scenario.counters.messages_out == len(bodies) == 45 - dropped
        assert scenario.counters.bytes_out == 903 * len(bodies)

    asyncio.run(scenario.run(use))
    assert bodies == [*(b"%03d" % number for number in range(len(bodies) - 5)), *(b"%03d" % number for number in range(100, 105))]
