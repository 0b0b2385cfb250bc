"""``sbusctl store`` against sbus-store on a bus."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from sbus import Bus
from tests.support.daemons import Daemon
from tests.support.relays import wait_for
from tests.support.store_programs import ENV, StoreProgram


def run(store: StoreProgram, *words: str, data: bytes = b"", expected: int = 0) -> str:
    """Return what sbusctl prints."""
    command = [sys.executable, "-m", "sbusctl.main", "-a", store.bus, *words]
    done = subprocess.run(command, input=data, env=ENV, capture_output=True, timeout=60, check=False)
    assert done.returncode == expected, done
    assert b"Traceback" not in done.stderr, done
    return (done.stdout + done.stderr).decode()


def completed(bus: str, *words: str) -> str:
    """Return the reply to a shell that completes the last of *words*."""
    command = [sys.executable, "-m", "sbusctl.main", "__complete", "fish", "-a", bus, *words]
    env = {**ENV, "SBUS_COMPLETION_TIMEOUT": "60"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_put_and_read(store: StoreProgram) -> None:
    assert run(store, "store", "put", "log/a", "one").strip().isdigit()
    run(store, "store", "put", "log/a", "-", data=b"two")
    lines = run(store, "store", "read", "log").splitlines()
    assert [line.split("\t")[2:] for line in lines] == [["log/a", "one"], ["log/a", "two"]]
    assert json.loads(run(store, "--json=short", "store", "read", "log", "-n", "1"))["payload"] == "one"
    assert len(run(store, "store", "read", "log", "--reader", "me").splitlines()) == 2
    assert not run(store, "store", "read", "log", "--reader", "me")


def test_streams_and_queues_are_completed(store: StoreProgram) -> None:
    def completions(*words: str) -> list[str]:
        directive, *lines = completed(store.bus, *words).splitlines()
        assert directive == "words"
        return [line.removesuffix("\t") for line in lines]

    shown = json.loads(run(store, "--json=short", "store", "streams"))
    streams, queues = ({each["name"] for each in shown[listing]} for listing in ("streams", "queues"))
    assert {"log", "state"} <= streams
    assert "mail" in queues
    assert set(completions("store", "read", "")) == set(completions("store", "peek", "")) == streams
    assert set(completions("store", "work", "")) == set(completions("store", "purge", "--queue", "")) == queues
    assert completions("store", "forget", "lo") == ["log"]


def test_without_a_store_nothing_is_completed_or_printed(bus: Daemon) -> None:
    assert completed(bus.path, "store", "read", "") == "words\n"


def test_a_reader_continues_after_what_was_printed(store: StoreProgram) -> None:
    for text in ("one", "two", "three", "four"):
        run(store, "store", "put", "log/a", text)
    read = ("store", "read", "log", "--reader", "me")

    def payloads(*more: str) -> list[str]:
        return [line.split("\t")[3] for line in run(store, *read, *more).splitlines()]

    assert payloads("-n", "1") == ["one"]
    assert payloads("-n", "1", "--follow") == ["two"]
    closed = subprocess.run(
        ["/bin/sh", "-c", 'exec "$0" "$@" >&-', sys.executable, "-m", "sbusctl.main", "-a", store.bus, *read],
        env=ENV,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (closed.returncode, closed.stderr) == (1, "sbusctl: cannot write to standard output: Bad file descriptor\n")
    assert payloads("-n", "2") == ["three", "four"]
    assert payloads() == []


def test_a_number_that_no_message_can_have_is_refused(store: StoreProgram) -> None:
    for number in ("9007199254740992", "99999999999999999999"):
        for line in (["read", "log", "--from", number], ["purge", "log", "--before", number], ["revive", "mail", number]):
            said = run(store, "store", *line, expected=2).splitlines()[0]
            assert number in said
            assert "9007199254740991" in said
    largest = "9007199254740991"
    assert "lost messages: the stream was begun again" in run(store, "store", "read", "log", "--from", largest)
    assert run(store, "store", "purge", "log", "--before", largest) == "0 messages\n"


def test_last_values(store: StoreProgram) -> None:
    run(store, "store", "put", "net/a", "old")
    run(store, "store", "put", "net/a", "new")
    assert run(store, "store", "last", "net/").rstrip().endswith("net/a\tnew")
    assert run(store, "store", "forget", "state", "net/a") == "1 message\n"


def test_work_acknowledges_by_status(store: StoreProgram) -> None:
    run(store, "store", "put", "mail/a", "hello")
    said = run(store, "store", "work", "-n", "1", "--timeout", "30", "mail", "--", "sh", "-c", "cat; echo $SBUS_KEY; exit 1")
    assert "hello" in said
    assert "mail/a" in said
    assert "ended with status 1; the job is tried again" in said
    run(store, "store", "work", "-n", "1", "--timeout", "30", "mail", "true")
    assert "ran 0 jobs of queue 'mail'" in run(store, "store", "work", "--timeout", "0", "mail", "true", expected=1)


@pytest.mark.parametrize("program", ["", "no-such-program", "/etc/passwd", "/"])
def test_a_program_that_cannot_run_uses_up_no_try(store: StoreProgram, program: str) -> None:
    run(store, "store", "put", "mail/a", "hello")
    said = run(store, "store", "work", "--timeout", "0", "mail", "--", program, "x", expected=2)
    assert said.startswith(f"sbusctl: store work: invalid value for COMMAND: no executable program {program!r}\n")
    assert run(store, "store", "work", "-n", "1", "--timeout", "30", "mail", "--", "printenv", "SBUS_TRIES") == "1\n"


def await_gaps(store: StoreProgram, gaps: int, unacknowledged: int) -> None:
    """Wait until there are *gaps*, of which *unacknowledged* are not acknowledged: figures can be a second old."""
    with Bus.connect(store.bus) as bus:

        def are_there() -> bool:
            state = json.loads(bus.call("store/status", timeout=60))
            return bool((state["gaps"], state["open_gaps"]) == (gaps, unacknowledged))

        wait_for(are_there, f"{gaps} gaps, {unacknowledged} not acknowledged")


def test_a_gap_is_open_until_it_is_acknowledged(store: StoreProgram) -> None:
    run(store, "store", "put", "log/a", "one")
    run(store, "store", "put", "net/a", "two")
    store.stop()
    store.start()
    await_gaps(store, 2, 0)  # a stop is expected
    store.kill()
    store.start()
    await_gaps(store, 4, 2)  # one for each stream with messages
    assert run(store, "store", "acknowledge") == "acknowledged: 2\n"
    await_gaps(store, 4, 0)
    store.kill()
    store.start()
    await_gaps(store, 6, 2)  # what was acknowledged does not grow
    store.stop()
    store.start()
    await_gaps(store, 8, 2)  # a stop acknowledges nothing


def test_an_error_has_one_hint(store: StoreProgram) -> None:
    said = run(store, "store", "purge", "nope", expected=1)
    advice = f"list what there is with `sbusctl -a {store.bus} store streams`"
    assert said == f"sbusctl: store/purge failed: ENOENT: unknown stream 'nope'; {advice}\n"


def test_tables_fit_and_errors_say_what_to_do(store: StoreProgram) -> None:
    table = run(store, "store", "streams")
    assert "QUEUE" in table
    assert max(map(len, table.splitlines())) <= 80
    assert "no stream stores the key" in run(store, "store", "put", "elsewhere", "x", expected=1)
    assert "must be the number of a message" in run(store, "store", "revive", "mail", "x", expected=2)
    assert run(store, "store", "put", "log/a", "-", data=bytes(409_000), expected=1).endswith(" can be sent\n")
