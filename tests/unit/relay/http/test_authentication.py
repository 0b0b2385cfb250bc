"""Authentication by key, by certificate, and of local users; an obviously invalid sender is rejected before the body is read."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from sbusd.config.hosts import TlsSettings
from sbusd.config.relay import PeerSettings, RelaySettings
from sbusd.relay.http.authentication import (
    Authentication,
    CertificateAuthentication,
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
from sbusd.relay.http.credentials import FROM, NONCE, SIGNATURE, TIME, is_same, response_signature, signed_headers
from sbusd.relay.log_messages import AUTHENTICATION_FAILED, REPLAYED
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
