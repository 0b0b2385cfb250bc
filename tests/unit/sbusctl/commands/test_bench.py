"""The payload sizes and the key of a benchmark."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from sbus.protocol.credentials import Credentials
from sbus.protocol.packets import MAX_PACKET_BYTES
from sbusctl.application import application
from sbusctl.bench.workers import LEAST_BYTES, MOST_BYTES
from sbusctl.commands.bench import parse_sizes, private_key


def test_sizes() -> None:
    assert parse_sizes("64") == [64]
    assert parse_sizes(f"{LEAST_BYTES}, 1024,{MOST_BYTES}") == [LEAST_BYTES, 1024, MOST_BYTES]


@pytest.mark.parametrize("text", ["", "64,", "15", "-64", "64k", "1e3", "٦٤", str(MOST_BYTES + 1), "9" * 30])
def test_an_invalid_size_is_rejected_and_named(text: str) -> None:
    with pytest.raises(ValueError, match=f"must be {LEAST_BYTES} to {MOST_BYTES} bytes") as caught:
        parse_sizes(text)
    assert repr(text.rsplit(",", maxsplit=1)[-1]) in str(caught.value)


def test_the_largest_fits_into_a_packet_with_its_key() -> None:
    everything = Credentials(2**32 - 2, 2**32 - 2, 2**22)
    key = everything.key(everything.key(b"")) + b"/bench/" + b"0" * 32
    assert len(b"MSG %b\0" % key) + MOST_BYTES <= MAX_PACKET_BYTES


def test_a_run_ends_after_a_count_or_after_a_time() -> None:
    result = CliRunner().invoke(application(), ["bench", "-n", "5", "-t", "1"], prog_name="sbusctl")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[0] == "sbusctl: bench: --count and --duration are mutually exclusive"


@pytest.mark.parametrize("prefix", [b"", b"!/cred/100/1000/1111/"])
def test_a_key_names_the_user_alone_and_cannot_be_guessed(prefix: bytes) -> None:
    key = private_key(prefix + b"!/cred/1000/1001/19211")
    assert re.fullmatch(re.escape(prefix) + rb"!/cred//1001//bench/[0-9a-f]{32}", key)
    assert key != private_key(prefix + b"!/cred/1000/1001/19211")
