"""Reasons are one printable line."""

from __future__ import annotations

import errno
import socket
import ssl

import pytest

from sbusd.link.network.error_words import MAX_WORDS, error_words


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('::1', 1)"), "Connection refused"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "Name or service not known"),
        (TimeoutError(), "no response in time"),
        (ValueError("nats: 'two\nlines'"), r"'two\x0alines'"),
        (ValueError(), "ValueError"),
        (ssl.SSLError(1, "[SSL] text"), "[SSL] text"),
    ],
)
def test_the_reason_is_short(error: Exception, says: str) -> None:
    assert error_words(error) == says


def test_the_text_of_another_host_is_bounded() -> None:
    assert len(error_words(ValueError("\x00" * 10_000))) < 5 * MAX_WORDS
