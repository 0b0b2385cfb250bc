"""Certificates and keys that are replaced on disk are used, and invalid ones are not."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sbusd.config.certificates import validity_of
from sbusd.config.hosts import TlsSettings
from sbusd.config.relay import PeerSettings, RelaySettings
from sbusd.relay.http import renewal
from sbusd.relay.http.renewal import Credentials
from sbusd.relay.log_messages import CERTIFICATE_ENDS, CREDENTIALS_KEPT, CREDENTIALS_READ
from sbusd.systemd.limited_log import LimitedLog
from sbusd.systemd.log_records import LogMessage, Record
from tests.support.authority import Authority

pytestmark = pytest.mark.slow

DAY = 86_400.0


class _Sink:
    """Keeps records, and reports each."""

    def __init__(self) -> None:
        self.records: asyncio.Queue[Record] = asyncio.Queue()

    def write(self, record: Record) -> None:
        self.records.put_nowait(record)

    def close(self) -> None:
        pass

    async def next(self) -> LogMessage:
        """Return the next message."""
        return (await asyncio.wait_for(self.records.get(), 30)).message


@asynccontextmanager
async def running(settings: RelaySettings, clock: float | None = None) -> AsyncIterator[tuple[Credentials, _Sink]]:
    """Run the credentials of *settings*; *clock* is the date."""
    sink = _Sink()
    made = Credentials(settings, LimitedLog("sbus-relay", sink), lambda: time.time() if clock is None else clock)
    task = asyncio.ensure_future(made.run())
    try:
        yield made, sink
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def settings(authority: Authority) -> RelaySettings:
    made = authority.sign("twin-1", file="relay", days=1000)
    return RelaySettings(twin=1, tls=TlsSettings(str(made.certificate), str(made.key), str(authority.certificate)))


def served(context: ssl.SSLContext | None, authority: Authority) -> int:
    """Return the serial number of the certificate in a handshake with *context*."""
    assert context is not None
    client = ssl.create_default_context(cafile=str(authority.certificate))
    own = authority.sign("client")
    client.load_cert_chain(own.certificate, own.key)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (client.wrap_bio(to_client, to_server, server_hostname="twin-1"), context.wrap_bio(to_server, to_client, server_side=True))
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return int(str((ends[0].getpeercert() or {})["serialNumber"]), 16)


@pytest.mark.parametrize("is_asked", [True, False], ids=["reload", "by itself"])
def test_new_handshakes_use_a_renewed_certificate(
    settings: RelaySettings, authority: Authority, monkeypatch: pytest.MonkeyPatch, is_asked: bool
) -> None:
    monkeypatch.setattr(renewal, "CHECK_SECONDS", 3600.0 if is_asked else 0.02)

    async def renew() -> None:
        async with running(settings) as (credentials, sink):
            first = served(credentials.server, authority)
            authority.sign("twin-1", file="relay", days=1000)
            if is_asked:
                credentials.reload()
            assert await sink.next() is CREDENTIALS_READ
            assert served(credentials.server, authority) != first

    asyncio.run(renew())


def test_invalid_files_are_reported_once_and_not_used(settings: RelaySettings, authority: Authority) -> None:
    async def renew() -> None:
        async with running(settings) as (credentials, sink):
            first = served(credentials.server, authority)
            other = authority.sign("twin-1", file="other")
            Path(settings.tls.certificate).write_bytes(other.certificate.read_bytes())
            credentials.reload()
            assert await sink.next() is CREDENTIALS_KEPT
            assert served(credentials.server, authority) == first
            Path(settings.tls.key).write_bytes(other.key.read_bytes())
            credentials.reload()
            assert await sink.next() is CREDENTIALS_READ

    asyncio.run(renew())


def test_a_replaced_key_is_used(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("k" * 32)
    file.chmod(0o600)
    settings = RelaySettings(peers=(PeerSettings(2, "localhost:1", str(file)),))

    async def renew() -> None:
        async with running(settings) as (credentials, sink):
            keys = credentials.keys
            file.write_text("l" * 32)
            credentials.reload()
            assert await sink.next() is CREDENTIALS_READ
            assert keys == {2: b"l" * 32}

    asyncio.run(renew())


@pytest.mark.parametrize(("days", "is_reported"), [(15.0, False), (13.0, True), (-1.0, True)])
def test_a_certificate_that_ends_is_reported(settings: RelaySettings, days: float, is_reported: bool) -> None:
    async def warn() -> None:
        validity = validity_of(Path(settings.tls.certificate))
        assert validity is not None
        async with running(settings, validity[1] - days * DAY) as (credentials, sink):
            credentials.reload()
            message = await sink.next()
            assert message is (CERTIFICATE_ENDS if is_reported else CREDENTIALS_READ)

    asyncio.run(warn())
