"""The journal feed as a service, on a machine with a journald of its own: its requirements, its readers, and that it misses no entry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.container import Container

FEED = "sbus-feed@journal.service"
RECEIVED = "/home/alice/received"


@pytest.fixture(scope="module")
def ruled(machine: Container) -> Iterator[Container]:
    """A machine where alice may read the journal and bob may not, by the rules that are shipped; the feed is not started."""
    machine.run("usermod --append --groups adm alice")
    machine.run("install -D --mode=644 --target-directory=/etc/sbus/sbusd.toml.d /usr/share/sbus/50-journal.toml")
    machine.run("systemctl restart sbus.service")
    yield machine
    machine.run(f"systemctl stop {FEED} listener.service; rm /etc/sbus/sbusd.toml.d/50-journal.toml; systemctl restart sbus.service")


def received(machine: Container) -> list[tuple[str, dict[str, Any]]]:
    """Return what alice has received so far."""
    lines = machine.output(f"cat {RECEIVED}").splitlines()
    return [(key, json.loads(payload)) for key, _, payload in (line.partition("\t") for line in lines)]


def listen(machine: Container) -> None:
    """Have alice hear the journal from now on."""
    machine.run(f"systemd-run --quiet --collect --uid=alice --unit=listener.service sh -c 'exec sbusctl sub journal/ >{RECEIVED}'")
    machine.wait_for("test $(sbusctl stats --json=short | grep -o '\"subscriptions\":[0-9]*' | cut -d: -f2) -eq 1")


def say(machine: Container, words: str, unit: str) -> None:
    """Have a service of this name write *words* into the journal, and wait until alice has received that."""
    machine.run(f"systemd-run --quiet --wait --unit={unit} echo '{words}'")
    machine.wait_for(f'grep --quiet \'"MESSAGE":"{words}"\' {RECEIVED}')


def test_without_rules_it_does_not_start_and_does_not_try_again(machine: Container) -> None:
    assert machine.run(f"systemctl start {FEED}", check=False).status != 0
    shown = machine.output(f"systemctl show --property=ExecMainStatus,NRestarts,ActiveState {FEED}").split()
    assert sorted(shown) == ["ActiveState=failed", "ExecMainStatus=78", "NRestarts=0"]
    assert "every user of this bus can subscribe to journal/" in machine.journal(f"--unit={FEED}")


def test_entries_of_a_real_journal(ruled: Container) -> None:
    ruled.run(f"systemctl start {FEED}")
    pid = ruled.output(f"systemctl show --property=MainPID --value {FEED}")
    assert ruled.output(f"stat --format=%U /proc/{pid}; grep CapEff /proc/{pid}/status").split() == ["sbus-feed", "CapEff:", "0" * 16]

    refused = ruled.run("sbusctl sub -n 1 journal/", user="bob", check=False)
    assert refused.status != 0
    assert "EPERM" in refused.stderr

    listen(ruled)
    say(ruled, "before rotation", "first.service")
    forged = "MESSAGE=word of bob\nUNIT=first.service\nOBJECT_SYSTEMD_UNIT=first.service\nSYSLOG_IDENTIFIER=first.service\nPRIORITY=3\n"
    ruled.run("logger --journald", user="bob", stdin=forged)
    ruled.wait_for(f"grep --quiet 'word of bob' {RECEIVED}")
    ruled.run("journalctl --rotate")
    say(ruled, "behind rotation", "second.service")

    # What is written while it is stopped comes when it starts, also from a file that was archived meanwhile.
    ruled.run(f"systemctl stop {FEED}")
    ruled.run("systemd-run --quiet --wait --unit=third.service echo 'while it was stopped'; journalctl --rotate")
    ruled.run(f"systemctl start {FEED}")
    say(ruled, "afterwards", "fourth.service")

    reported = received(ruled)
    keys = [key for key, _ in reported]
    assert "journal/-/lost" not in keys
    words = [payload["MESSAGE"] for _, payload in reported]
    expected = ["before rotation", "word of bob", "behind rotation", "while it was stopped", "afterwards"]
    assert [each for each in words if each in expected] == expected
    by_word = dict(zip(words, keys, strict=True))
    assert by_word["before rotation"] == "journal/first.service/info"
    assert by_word["word of bob"].split("/")[1] not in {"first.service", "kernel"}
    # What the service manager says of a unit has the key of the unit.
    assert any(key == "journal/third.service/info" and payload["_PID"] == "1" for key, payload in reported)


def test_a_slow_reader_s_losses_do_not_come_back_as_entries(ruled: Container) -> None:
    """Else each record of a loss would be published, lost, and recorded again, without end."""
    ruled.run("printf '[limits]\\nqueue_packets = 1\\n' >/etc/sbus/sbusd.toml.d/90-small.toml; systemctl restart sbus.service")
    ruled.run(f"systemctl restart {FEED}; systemctl stop listener.service; rm -f {RECEIVED}")
    for unit, pattern, file in (
        ("slow", "journal/", "/dev/null"),
        ("listener", "journal/*/info", RECEIVED),
        ("warned", "journal/*/warning", "/tmp/w"),
    ):
        ruled.run(f"systemd-run --quiet --collect --uid=alice --unit={unit}.service sh -c 'exec sbusctl sub \"{pattern}\" >{file}'")
    ruled.wait_for("test $(sbusctl stats --json=short | grep -o '\"subscriptions\":[0-9]*' | cut -d: -f2) -eq 3")
    ruled.run("systemctl kill --signal=STOP slow.service")
    # As many as fill the socket of who does not read, and the queue behind it.
    ruled.run("seq --format=%0900.0f 2000 | logger --priority=user.debug")
    ruled.wait_for("test $(sbusctl stats --json=short | grep -o '\"lost_packets\":[0-9]*' | cut -d: -f2) -gt 0")
    # The bus logs the loss when it has reported it to the reader, which must read for that.
    ruled.run("systemctl kill --signal=CONT slow.service")
    ruled.wait_for("journalctl --quiet --unit=sbus.service SBUS_EVENT=packets-lost | grep --quiet discarded")
    ruled.run("logger --priority=user.warning 'a warning of another'")
    say(ruled, "behind the losses", "fifth.service")
    ruled.wait_for("grep --quiet 'a warning of another' /tmp/w")
    assert "packets for a client that reads too slowly" not in ruled.output("cat /tmp/w")
    ruled.run("systemctl kill --signal=KILL slow.service; systemctl stop warned.service; rm /etc/sbus/sbusd.toml.d/90-small.toml")


def test_first_entries_of_users_are_not_passed_over(ruled: Container) -> None:
    """journald makes a file for each user, which the library does not know while entries of the system are read."""
    make = "mkdir -p /var/log/journal; systemd-tmpfiles --create --prefix=/var/log/journal; systemctl restart systemd-journald.service"
    ruled.run(f"systemctl stop listener.service; {make}; journalctl --flush; systemctl restart {FEED}")
    listen(ruled)
    uids = range(2000, 2020)
    lines = [f"logger of root; setpriv --clear-groups --regid=100 --reuid={uid} logger first of {uid}; logger of root" for uid in uids]
    ruled.run("; ".join(lines))
    say(ruled, "end of the users", "users.service")
    reported = received(ruled)
    assert ruled.output(f"ls /var/log/journal/*/user-{uids[-1]}.journal")
    assert [payload for key, payload in reported if key == "journal/-/lost"] == []
    said = [payload["MESSAGE"] for _, payload in reported]
    assert [each for each in said if each.startswith("first of ")] == [f"first of {uid}" for uid in uids]


def test_it_follows_the_journal_to_the_disk_and_back(ruled: Container) -> None:
    """The library watches only the folders that it finds: when the journal moves to another one, nothing would come any more."""
    store = "printf '[Journal]\nStorage={}\n' >/etc/systemd/journald.conf.d/50-store.conf; systemctl restart systemd-journald.service"
    ruled.run("systemctl stop listener.service; mkdir -p /etc/systemd/journald.conf.d; journalctl --relinquish-var")
    ruled.run(f"rm -rf /var/log/journal; {store.format('volatile')}; systemctl restart {FEED}")
    listen(ruled)
    make = "mkdir /var/log/journal; systemd-tmpfiles --create --prefix=/var/log/journal"
    steps = {
        "in memory": "true",
        "restarted": f"{make}; {store.format('persistent')}",
        "on disk": "journalctl --flush",
        "rotated": "journalctl --rotate",
        # Only files from which all was read: what is removed before that is lost.
        "vacuumed": "journalctl --vacuum-size=1M",
        "in memory again": "journalctl --relinquish-var",
        "on disk again": "journalctl --flush",
    }
    for number, (words, step) in enumerate(steps.items()):
        ruled.run(f"{step}; seq --format='{words} %g' 200 | logger")
        say(ruled, f"end of {words}", f"step{number}.service")
    reported = received(ruled)
    assert [payload for key, payload in reported if key == "journal/-/lost"] == []
    said = [payload["MESSAGE"] for _, payload in reported]
    expected = [f"{words} {number}" for words in steps for number in range(1, 201)]
    assert [each for each in said if each.split(" ")[-1].isdigit() and each.rsplit(" ", 1)[0] in steps] == expected
    ruled.run("rm /etc/systemd/journald.conf.d/50-store.conf; systemctl restart systemd-journald.service")


def test_systemd_finds_little_that_it_could_do(ruled: Container) -> None:
    said = ruled.output(f"systemd-analyze security --no-pager {FEED} | tail -n 1")
    exposure = float(said.split(":")[1].split()[0])
    assert exposure <= 1.5, said
