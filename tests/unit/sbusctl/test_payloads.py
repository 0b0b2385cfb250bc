"""Standard input is the payload only if the command line says so: otherwise it belongs to another program."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from sbus.protocol.packets import MAX_PACKET_BYTES
from sbusctl.payloads import InputTooLongError, is_without_data, one_payload


class _Terminal(io.BytesIO):
    """Input from a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("payload", "source", "expected"),
    [
        ("hello", io.BytesIO(b"unread"), b"hello"),
        ("", io.BytesIO(b"unread"), b""),
        ("f\udcff", io.BytesIO(), b"f\xff"),
        ("-", io.BytesIO(b"a\n\0b"), b"a\n\0b"),
        ("-", _Terminal(b"typed"), b"typed"),
        (None, _Terminal(b"unread"), b""),
    ],
)
def test_the_payload(payload: str | None, source: io.BytesIO, expected: bytes) -> None:
    assert one_payload(payload, source) == expected


def test_the_null_device_is_an_empty_payload_and_a_file_or_a_pipe_is_not(tmp_path: Path) -> None:
    with open(os.devnull, "rb") as null:
        assert one_payload(None, null) == b""
    (tmp_path / "lines").write_bytes(b"one\n")
    reading, writing = os.pipe()
    with open(tmp_path / "lines", "rb") as file, os.fdopen(reading, "rb") as pipe, os.fdopen(writing, "wb"):
        for source in (file, pipe):
            with pytest.raises(typer.BadParameter, match="missing DATA: write '-' to read standard input"):
                one_payload(None, source, "DATA")
        assert file.read() == b"one\n"


@pytest.mark.parametrize("pair", [os.pipe, lambda: tuple(end.detach() for end in socket.socketpair())])
def test_a_pipe_that_has_ended_without_data_is_an_empty_payload(pair: Callable[[], tuple[int, int]]) -> None:
    for written in (b"", b"line"):
        reading, writing = pair()
        with os.fdopen(reading, "rb") as source:
            os.write(writing, written)
            os.close(writing)
            assert is_without_data(source) is not bool(written)
            assert source.read() == written


def test_the_maximum_packet_size_bounds_the_input() -> None:
    assert len(one_payload("-", io.BytesIO(bytes(MAX_PACKET_BYTES)))) == MAX_PACKET_BYTES
    source = io.BytesIO(bytes(MAX_PACKET_BYTES * 3))
    with pytest.raises(InputTooLongError, match=r"409600 bytes$"):
        one_payload("-", source)
    assert source.tell() == MAX_PACKET_BYTES + 1


@pytest.mark.slow
@pytest.mark.parametrize("words", ["pub k/$line", "call k/$line", "store put k/$line"])
def test_a_command_in_a_loop_leaves_the_lines_to_the_loop(tmp_path: Path, words: str) -> None:
    (tmp_path / "lines").write_text("a\nb\nc\n")
    program = f"'{sys.executable}' -m sbusctl.main -a '{tmp_path}/none' {words}"
    script = f"while read -r line; do {program}; echo \"$line $?\"; done < '{tmp_path}/lines'"
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "a 2\nb 2\nc 2\n"
    assert done.stderr.count("write '-' to read standard input") == 3
