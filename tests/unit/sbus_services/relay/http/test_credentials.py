"""Signatures: changes are detected, and key files that other users can access are rejected."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import os
import pwd
import shlex
import subprocess
from pathlib import Path

import pytest

from sbus_programs.config.files import ConfigError
from sbus_services.relay.http.credentials import (
    NONCE,
    SIGNATURE,
    TIME,
    SignatureHeaders,
    is_same,
    read_key,
    read_signature_headers,
    request_signature,
    response_signature,
    signed_headers,
)

KEY = b"0123456789abcdef"


def test_a_signature_covers_the_signed_data() -> None:
    headers = signed_headers(KEY, 1001, 1002, "/zbus-remote", b"body", now=1_795_000_000.9)
    signed = read_signature_headers(headers)
    assert signed is not None
    assert (signed.twin, signed.time) == (1001, 1_795_000_000)
    right = request_signature(KEY, signed, 1002, "/zbus-remote", b"body")
    assert is_same(right, signed.signature)
    for key, to, path, body in [
        (b"x" * 16, 1002, "/zbus-remote", b"body"),
        (KEY, 1001, "/zbus-remote", b"body"),
        (KEY, 1002, "/zbus-reply", b"body"),
        (KEY, 1002, "/zbus-remote", b"bodY"),
    ]:
        assert not is_same(request_signature(key, signed, to, path, body), signed.signature)


def test_no_two_requests_have_the_same_nonce() -> None:
    made = [signed_headers(KEY, 1, 2, "/", b"", now=0)[NONCE] for _ in range(100)]
    assert len(set(made)) == 100


def test_the_answer_is_signed_for_its_request_and_status() -> None:
    asked = SignatureHeaders(1001, 1, "a" * 32, "c" * 64)
    right = response_signature(KEY, asked, 200, b"{}")
    assert right == response_signature(KEY, asked, 200, b"{}")
    assert right != response_signature(KEY, SignatureHeaders(1001, 1, "b" * 32, "c" * 64), 200, b"{}")
    assert right != response_signature(KEY, SignatureHeaders(1001, 1, "a" * 32, "d" * 64), 200, b"{}")
    assert right != response_signature(KEY, asked, 503, b"{}")
    assert right != response_signature(KEY, asked, 200, b"")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (TIME, "-1"),
        (TIME, "1.5"),
        (TIME, "9" * 13),
        (TIME, "\u0661"),
        (NONCE, "A" * 32),
        (NONCE, ""),
        (SIGNATURE, "0" * 63),
        ("Sbus-Twin", "x"),
    ],
)
def test_invalid_headers_are_none(name: str, value: str) -> None:
    headers = signed_headers(KEY, 1001, 1002, "/", b"", now=1)
    assert read_signature_headers(headers | {name: value}) is None
    assert read_signature_headers({each: text for each, text in headers.items() if each != name}) is None


def test_a_key_is_read_without_its_line_end(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(KEY + b"\n")
    file.chmod(0o600)
    assert read_key(file) == KEY


def test_a_credential_of_systemd_is_read(tmp_path: Path, needs_root: None) -> None:
    """It belongs to root and its group, and an ACL lets the service read it."""
    file = tmp_path / "key"
    file.write_bytes(KEY)
    file.chmod(0o440)
    assert read_key(file) == KEY


@pytest.mark.slow
@pytest.mark.usefixtures("needs_root")
@pytest.mark.parametrize(("owner", "mode", "says"), [((0, 4711), 0o640, "group 4711"), ((4711, 0), 0o600, "owned by user 4711")])
def test_a_key_that_another_user_has_is_refused_until_the_hint_is_run(
    tmp_path: Path, owner: tuple[int, int], mode: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users join the relay's group to call remote hosts; and the uid of a removed user may be reused."""
    file = tmp_path / "key"
    file.write_bytes(KEY)
    file.chmod(mode)
    os.chown(file, *owner)
    monkeypatch.setattr("sbus_services.relay.http.credentials.SERVICE_USER", pwd.getpwuid(65534).pw_name)
    with pytest.raises(ConfigError, match=says) as refused:
        read_key(file)
    subprocess.run(shlex.split(str(refused.value).rpartition(": ")[2]), check=True)
    assert read_key(file) == KEY


def test_root_may_check_a_key_of_the_services_user(tmp_path: Path, needs_root: None, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = pwd.getpwnam("nobody")
    monkeypatch.setattr("sbus_services.relay.http.credentials.SERVICE_USER", "nobody")
    file = tmp_path / "key"
    file.write_bytes(KEY)
    file.chmod(0o600)
    os.chown(file, nobody.pw_uid, nobody.pw_gid)
    assert read_key(file) == KEY


@pytest.mark.parametrize(
    ("content", "mode", "says"),
    [
        (KEY, 0o620, "accessible to other users"),
        (KEY, 0o644, "accessible to other users"),
        (b"short", 0o600, "5 bytes"),
        (b"x" * 2_000, 0o600, "bytes"),
    ],
)
def test_an_invalid_key_is_rejected(tmp_path: Path, content: bytes, mode: int, says: str) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    file.chmod(mode)
    with pytest.raises(ConfigError, match=says):
        read_key(file)


def test_a_key_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_key(tmp_path / "key")


def test_key_in_a_fifo_is_rejected_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "key", 0o600)
    # A FIFO with a reader and a writer does not block open(2); it contains a key.
    fifo = os.open(tmp_path / "key", os.O_RDWR)
    try:
        os.write(fifo, KEY.ljust(2_000))
        with pytest.raises(ConfigError, match="not a regular file"):
            read_key(tmp_path / "key")
    finally:
        os.close(fifo)


def test_signatures_are_made_as_the_manual_says() -> None:
    stamp = SignatureHeaders(1001, 1_795_000_000, "0" * 32, "")
    digest = hashlib.sha256(b"{}").hexdigest()
    lines = ["sbus-relay-2", "POST", "/zbus-remote", "1001", "1002", "1795000000", "0" * 32, digest]
    request = hmac.new(KEY, "\n".join(lines).encode(), "sha256").hexdigest()
    assert request_signature(KEY, stamp, 1002, "/zbus-remote", b"{}") == request
    lines = ["sbus-relay-2", "response", "0" * 32, request, "200", digest]
    response = hmac.new(KEY, "\n".join(lines).encode(), "sha256").hexdigest()
    assert response_signature(KEY, dataclasses.replace(stamp, signature=request), 200, b"{}") == response
