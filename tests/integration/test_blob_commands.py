"""sbusctl with blobs: pub --blob, sub --blobs, and blob."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbus import Bus
from tests.support.blob_programs import ENV, BlobProgram
from tests.support.daemons import Daemon
from tests.support.relays import wait_for

SHARES_BUS = True


@pytest.fixture
def service(bus: Daemon, folder: Path) -> Iterator[BlobProgram]:
    with BlobProgram(folder, bus.path) as program:
        yield program


def start(bus: Daemon, *words: str) -> subprocess.Popen[bytes]:
    """Start sbusctl."""
    command = [sys.executable, "-m", "sbusctl.main", "--address", bus.path, *words]
    return subprocess.Popen(command, env=ENV, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run(bus: Daemon, *words: str) -> tuple[int, bytes, str]:
    """Run sbusctl; return its status, and what it has written."""
    with start(bus, *words) as process:
        out, err = process.communicate(timeout=50)
    return process.returncode, out, err.decode()


def subscribed(bus: Daemon) -> None:
    """Wait until another connection has a subscription."""
    with Bus.connect(bus.path) as client:
        wait_for(lambda: bool(client.members("a/b")), "a subscription")


def test_files_arrive_as_files(service: BlobProgram, bus: Daemon, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(range(256)) * 8_000)
    target = tmp_path / "target"
    target.mkdir()
    with start(bus, "sub", "--blobs", str(target), "--count", "3", "--format", "%k %p", "") as subscriber:
        subscribed(bus)
        for key in ("a/b", "../../etc/x y", "plain"):
            words = ("--blob", str(tmp_path / "file"), "--type", "image/png", key) if key != "plain" else (key, "text")
            assert run(bus, "pub", *words) == (0, b"", "")
        out, err = subscriber.communicate(timeout=50)
    assert (subscriber.returncode, err) == (0, b"")
    first, second = target / "000001-a_b", target / "000002-.._.._etc_x_y"
    assert out.decode().splitlines() == [f"a/b {first}", f"../../etc/x y {second}", "plain text"]
    assert first.read_bytes() == second.read_bytes() == (tmp_path / "file").read_bytes()
    assert first.stat().st_mode & 0o777 == 0o600


def test_a_blob_that_ended_is_reported(service: BlobProgram, bus: Daemon, tmp_path: Path) -> None:
    with start(bus, "sub", "--blobs", str(tmp_path), "--json=short", "--count", "1", "") as subscriber:
        subscribed(bus)
        with Bus.connect(bus.path) as client:
            os.kill(subscriber.pid, 19)
            client.drop_blob(client.publish_blob("a/b", b"x"))
            os.kill(subscriber.pid, 18)
            client.publish("a/b", "next")
        out, err = subscriber.communicate(timeout=50)
    lines = [json.loads(line) for line in out.splitlines()]
    assert [(line["type"], line.get("lost"), line.get("payload")) for line in lines] == [("gap", 1, None), ("message", None, "next")]
    assert err.decode() == "sbusctl: lost the blob of a message with key a/b: the blob is gone: its owner has dropped it\n"


def test_blobs_are_listed_got_and_dropped(service: BlobProgram, bus: Daemon, tmp_path: Path) -> None:
    assert run(bus, "blob", "list") == (0, b"\n0 blobs.\n", "")
    (tmp_path / "file").write_bytes(b"content")
    assert run(bus, "pub", "--blob", str(tmp_path / "file"), "--expire", "500", "a/b")[0] == 0
    status, out, _ = run(bus, "--json=short", "blob", "list")
    (blob,) = json.loads(out)["blobs"]
    assert (status, blob["size"], blob["keep"]) == (0, 7, True)
    assert 400 < blob["expire"] <= 500
    ticket = blob["ticket"]
    assert ticket.encode() in run(bus, "blob", "list")[1]
    assert run(bus, "blob", "get", ticket) == (0, b"content", "")
    assert run(bus, "blob", "get", ticket, "--output", str(tmp_path / "copy")) == (0, b"", "")
    assert (tmp_path / "copy").read_bytes() == b"content"
    assert run(bus, "blob", "drop", ticket) == (0, b"", "")
    reason = "ENOENT the blob is gone: its owner has dropped it"
    assert run(bus, "blob", "get", ticket) == (1, b"", f"sbusctl: sbus-blob refused the request: {reason}\n")
    status, out, _ = run(bus, "--json=short", "blob", "stats")
    assert json.loads(out)["counters"]["dropped"] == 1
    assert b"blobs" in run(bus, "blob", "stats")[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("blob", "get"), "missing argument TICKET"),
        (("blob", "list", "x"), "unexpected extra argument"),
        (("blob", "drop", "x", "-o", "f"), "-o is not an option of drop; it is one of get"),
        (("pub", "--blob", "f", "k", "payload"), "--blob publishes a file"),
        (("pub", "--type", "a/b", "k", "payload"), "--type and --expire require --blob"),
        (("sub", "--blobs", "/dev/null", "k"), "is not a directory"),
    ],
)
def test_wrong_command_lines(bus: Daemon, words: tuple[str, ...], said: str) -> None:
    status, out, err = run(bus, *words)
    assert (status, out) == (2, b"")
    assert said in err


def test_errors_are_one_line(bus: Daemon, tmp_path: Path) -> None:
    for words in (("blob", "list"), ("pub", "--blob", __file__, "k")):
        status, _, err = run(bus, *words)
        assert status == 1
        (line,) = err.splitlines()
        assert "no process listens; start sbus-blob for this bus, see sbus-blob(8)" in line
    status, _, err = run(bus, "pub", "--blob", str(tmp_path / "none"), "k")
    assert (status, err) == (1, f"sbusctl: {tmp_path}/none: No such file or directory\n")


def test_standard_input_and_endless_files(service: BlobProgram, bus: Daemon) -> None:
    status, _, err = run(bus, "pub", "--blob", "/dev/zero", "k")
    assert status == 1
    assert err.startswith("sbusctl: /dev/zero: it has more than 268435456 bytes, the quota of this user for blobs")
    assert run(bus, "pub", "--blob", "-", "k") == (0, b"", "")
    listed = json.loads(run(bus, "--json=short", "blob", "list")[1])["blobs"]
    assert [blob["size"] for blob in listed] == [0]


def test_the_blob_of_a_refused_message_is_dropped(service: BlobProgram, bus: Daemon) -> None:
    status, _, err = run(bus, "pub", "--blob", __file__, "!/x")
    assert status == 1
    assert "the bus refused a message" in err
    assert json.loads(run(bus, "--json=short", "blob", "list")[1])["blobs"] == []
