"""Authentication by key, by certificate, and of local users; an obviously invalid sender is rejected before the body is read."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sbus_programs.config.certificates import validity_of
from sbus_programs.config.hosts import TlsSettings
from sbus_programs.config.relay import PeerSettings, RelaySettings
from sbus_programs.systemd.log_records import LimitedLog, LogMessage, Record
from sbus_services.relay.http import authentication
from sbus_services.relay.http.authentication import (
    Authentication,
    CertificateAuthentication,
    Credentials,
    KeyAuthentication,
    LocalUserAuthentication,
    RejectedRequestError,
    SenderIdentity,
    UnverifiedRequest,
    make_authentication,
    read_keys,
    response_headers,
    sent_at,
)
from sbus_services.relay.http.credentials import FROM, NONCE, SIGNATURE, TIME, is_same, response_signature, signed_headers
from sbus_services.relay.log_messages import AUTHENTICATION_FAILED, CERTIFICATE_ENDS, CREDENTIALS_KEPT, CREDENTIALS_READ, REPLAYED
from tests.support.authority import Authority
from tests.support.bus_hosts import FIRST, SECOND

KEY = b"0123456789abcdef"
NOW = 1_795_000_000.5
PATH = "/zbus-remote"


def signed(body: bytes = b"{}", *, key: bytes = KEY, to: int = FIRST, path: str = PATH, now: float = NOW) -> UnverifiedRequest:
    """Return a request that the second host has signed."""
    return UnverifiedRequest(PATH, signed_headers(key, SECOND, to, path, body, now=now), ("10.0.0.2", 1), None, None, b"{}")


def key_gate(skew: float = 60.0) -> KeyAuthentication:
    """Return the authentication of the first host, which shares a key with the second."""
    return KeyAuthentication(FIRST, {SECOND: KEY}, skew, lambda: NOW)


def refusal(authentication: Authentication, caller: UnverifiedRequest) -> RejectedRequestError:
    """Return why *caller* is refused."""
    try:
        authentication.precheck(caller)
        authentication.identify(caller)
    except RejectedRequestError as report_rejection:
        return report_rejection
    pytest.fail("was let in")


def test_valid_signature_identifies_the_sender_and_the_nonce() -> None:
    caller = signed()
    sender = key_gate().identify(caller)
    assert sender.twin == SECOND
    assert sender.nonce is not None
    assert (sender.nonce.twin, sender.nonce.nonce) == (SECOND, caller.headers[NONCE])
    # As long as the same headers are valid: from the earliest accepted clock to the latest.
    assert sender.nonce.seconds >= 2 * 60 + 2


@pytest.mark.parametrize(
    ("caller", "says"),
    [
        (signed(key=b"x" * 16), "the signature is not that of host 1002"),
        (signed(b"other"), "the signature is not"),
        (signed(to=1003), "the signature is not"),
        (signed(path="/zbus-reply"), "the signature is not"),
        (dataclasses.replace(signed(), headers={}), "is not signed"),
        (dataclasses.replace(signed(), headers={**signed().headers, SIGNATURE: "0" * 63}), "is not signed"),
        (dataclasses.replace(signed(), headers={**signed().headers, FROM: "1003"}), "no key for host 1003"),
    ],
)
def test_an_invalid_signature_is_rejected(caller: UnverifiedRequest, says: str) -> None:
    report_rejection = refusal(key_gate(), caller)
    assert (report_rejection.status, report_rejection.event, report_rejection.counted) == (401, AUTHENTICATION_FAILED, "peers-refused")
    assert says in report_rejection.words


@pytest.mark.parametrize("seconds", [-62.0, 62.0])
def test_wrong_clock_is_reported(seconds: float) -> None:
    report_rejection = refusal(key_gate(), signed(now=NOW + seconds))
    assert (report_rejection.status, report_rejection.event) == (401, REPLAYED)
    assert f"the clock of host 1002 differs by {seconds:+.0f} s" in report_rejection.words.replace("-63", "-62")


@pytest.mark.parametrize("seconds", [-60.0, 60.0])
def test_a_clock_within_the_skew_is_good(seconds: float) -> None:
    assert key_gate().identify(signed(now=NOW + seconds)).twin == SECOND


@pytest.mark.parametrize("headers", [{}, {FROM: "1003", TIME: "1", NONCE: "0" * 32, SIGNATURE: "0" * 64}])
def test_sender_without_a_key_is_rejected_before_the_body(headers: dict[str, str]) -> None:
    with pytest.raises(RejectedRequestError):
        key_gate().precheck(dataclasses.replace(signed(), headers=headers, body=b""))


@pytest.mark.parametrize(
    ("names", "twin"),
    [
        ([("DNS", "twin-1002")], 1002),
        ([("DNS", "host.example"), ("DNS", "twin-1002")], 1002),
        ([("DNS", "twin-1002"), ("DNS", "twin-1003")], None),
        ([("DNS", "host.example")], None),
        ([], None),
    ],
)
def test_certificate_names_one_host(names: list[tuple[str, str]], twin: int | None) -> None:
    caller = dataclasses.replace(signed(), certificate={"subjectAltName": tuple(names)})
    authentication = CertificateAuthentication()
    if twin is not None:
        authentication.precheck(caller)
        assert authentication.identify(caller) == SenderIdentity(twin)
    else:
        assert refusal(authentication, caller).status == 403


def test_sender_without_a_certificate_is_rejected() -> None:
    assert refusal(CertificateAuthentication(), signed()).event == AUTHENTICATION_FAILED


def test_over_loopback_the_relays_own_user_is_trusted() -> None:
    assert LocalUserAuthentication().identify(dataclasses.replace(signed(), user=os.geteuid())) == SenderIdentity()


@pytest.mark.parametrize(
    ("user", "says"), [(os.geteuid() + 1, f"this connection is of user {os.geteuid() + 1}"), (None, "the kernel reports no user")]
)
def test_over_loopback_another_user_is_refused(user: int | None, says: str) -> None:
    report_rejection = refusal(LocalUserAuthentication(), dataclasses.replace(signed(), user=user))
    assert report_rejection.status == 403
    assert says in report_rejection.words


def test_remote_host_without_authentication_is_rejected() -> None:
    assert refusal(LocalUserAuthentication(), signed()).event == AUTHENTICATION_FAILED


def test_configuration_selects_the_authentication(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(KEY + b"\n")
    file.chmod(0o600)
    keyed = RelaySettings(peers=(PeerSettings(SECOND, "", str(file)),))
    assert read_keys(keyed) == {SECOND: KEY}
    tls = RelaySettings(tls=TlsSettings("/c", "/k", "/a"))
    made = [make_authentication(settings, FIRST, read_keys(settings)) for settings in (keyed, tls, RelaySettings())]
    assert [type(authentication) for authentication in made] == [KeyAuthentication, CertificateAuthentication, LocalUserAuthentication]


def test_response_is_signed_only_for_a_valid_signature() -> None:
    sender = key_gate().identify(signed())
    assert sender.signed is not None
    headers = response_headers(FIRST, {SECOND: KEY}, sender, 200, b"said")
    assert headers[FROM] == str(FIRST)
    assert is_same(headers[SIGNATURE], response_signature(KEY, sender.signed, 200, b"said"))
    for unknown in (None, SenderIdentity(), SenderIdentity(SECOND)):
        assert response_headers(FIRST, {SECOND: KEY}, unknown, 200, b"said") == {}


@pytest.mark.parametrize(("text", "seconds"), [("1795000000", 1_795_000_000.0), ("", None), ("x", None), ("-1", None), ("1" * 13, None)])
def test_sending_time_is_that_of_the_sender(text: str, seconds: float | None) -> None:
    assert sent_at(dataclasses.replace(signed(), headers={TIME: text})) == seconds


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
    monkeypatch.setattr(authentication, "CHECK_SECONDS", 3600.0 if is_asked else 0.02)

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
