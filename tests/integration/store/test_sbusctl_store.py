"""``sbusctl store`` against sbus-store on a bus."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support.store_programs import ENV, StoreProgram


def run(store: StoreProgram, *words: str, data: bytes = b"", expected: int = 0) -> str:
    """Return what sbusctl prints."""
    command = [sys.executable, "-m", "sbusd.ctl.main", "-a", store.bus, *words]
    done = subprocess.run(command, input=data, env=ENV, capture_output=True, timeout=60, check=False)
    assert done.returncode == expected, done
    assert b"Traceback" not in done.stderr, done
    return (done.stdout + done.stderr).decode()


def test_put_and_read(store: StoreProgram) -> None:
    assert run(store, "store", "put", "log/a", "one").strip().isdigit()
    run(store, "store", "put", "log/a", "-", data=b"two")
    lines = run(store, "store", "read", "log").splitlines()
    assert [line.split("\t")[2:] for line in lines] == [["log/a", "one"], ["log/a", "two"]]
    assert json.loads(run(store, "--json=short", "store", "read", "log", "-n", "1"))["payload"] == "one"
    assert len(run(store, "store", "read", "log", "--reader", "me").splitlines()) == 2
    assert not run(store, "store", "read", "log", "--reader", "me")


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


def test_tables_fit_and_errors_say_what_to_do(store: StoreProgram) -> None:
    table = run(store, "store", "streams")
    assert "QUEUE" in table
    assert max(map(len, table.splitlines())) <= 80
    assert "no stream stores the key" in run(store, "store", "put", "elsewhere", "x", expected=1)
    assert "must be the number of a message" in run(store, "store", "revive", "mail", "x", expected=2)
