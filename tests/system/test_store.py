"""Stored messages as a service: the package of the store on a booted machine, with two users, kills, restarts and removal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.catalog import CATALOG, entries
from tests.support.container import Container
from tests.support.packages import Packages
from tests.system.conftest import APT_INSTALL, BUS, boot

CONFIGURATION = """
[[stream]]
name = "state"
keys = ["state/"]
last = 1
on_subscribe = true

[[stream]]
name = "mail"
keys = ["mail/"]

[[queue]]
name = "mail"
stream = "mail"
"""

POLICY = """
[[policy]]
keys = "mail/"
subscribe = "deny"
users = ["bob"]
"""

_MAIN_PID = "systemctl show --value --property=MainPID sbus-store.service"


@pytest.fixture(scope="module")
def storing(built: Packages) -> Iterator[Container]:
    """A machine with the package, which an administrator has configured and enabled."""
    machine = boot(built, installed=BUS)
    try:
        machine.run("cat >/etc/sbus/sbusd.toml.d/60-mail.toml", stdin=POLICY)
        machine.run(f"{APT_INSTALL} /opt/packages/{built.store.name}")
        assert machine.output("systemctl is-enabled sbus-store.service || true") == "disabled"
        machine.run("cat >/etc/sbus/store.toml", stdin=CONFIGURATION)
        machine.run("sbus-store --check && systemctl enable --now sbus-store.service")
        yield machine
    finally:
        machine.stop()


def test_a_late_subscriber_without_a_library_gets_the_last_value(storing: Container) -> None:
    storing.run("sbusctl store put state/door closed && sbusctl store put state/door open", user="alice")
    subscribe = "printf 'SUB state/' | socat -t 60 - UNIX-CONNECT:/run/sbus.socket,type=5 >/tmp/late"
    storing.run(f'setsid sh -c "{subscribe}" </dev/null >/dev/null 2>&1 &', user="bob")
    storing.wait_for("test \"$(tr '\\0' ' ' </tmp/late)\" = 'MSG state/door open'")


def test_jobs_outlive_their_worker_and_the_store(storing: Container) -> None:
    """The first worker is killed while it has the job, and so is the store; the job is there for the next worker."""
    storing.run("sbusctl store put mail/1 hello", user="alice")
    work = "setsid sh -c 'sbusctl store work mail -- sh -c \"echo \\$\\$ >/tmp/worker; exec sleep 600\"' </dev/null >/dev/null 2>&1 &"
    storing.run(work, user="alice")
    storing.wait_for("test -s /tmp/worker")
    before = storing.output(_MAIN_PID)
    storing.run("systemctl kill --signal=KILL --kill-whom=main sbus-store.service")
    storing.wait_for(f"test $({_MAIN_PID}) -gt 0 && test $({_MAIN_PID}) -ne {before}")
    storing.run("kill -9 $(ps -o ppid= -p $(cat /tmp/worker)) && kill -9 $(cat /tmp/worker)")
    storing.wait_for('test "$(sbusctl store work --count 1 --timeout 5 mail -- cat)" = hello', user="alice")


def test_a_user_who_may_not_subscribe_may_not_read_or_work(storing: Container) -> None:
    storing.run("sbusctl store put mail/2 private", user="alice")
    for command in ("read mail", "peek mail", "work --timeout 1 mail -- cat", "peek --queue mail"):
        outcome = storing.run(f"sbusctl store {command}", user="bob", check=False)
        assert outcome.status != 0, command
        assert outcome.stdout == "", command
        assert "EACCES" in outcome.stderr, (command, outcome.stderr)
    assert storing.output("sbusctl store work --count 1 mail -- cat", user="alice") == "private"


def test_stored_messages_outlive_restarts_of_bus_and_store(storing: Container) -> None:
    storing.run("sbusctl store put state/window shut", user="alice")
    storing.run("systemctl restart sbus.service sbus-store.service")
    storing.wait_for("sbusctl store last state/window | grep --quiet shut", user="bob")
    # It knows that this was no boot of the machine.
    storing.wait_for("grep --quiet $(cat /proc/sys/kernel/random/boot_id) /var/lib/sbus-store/store.sqlite.date")


def test_a_wrong_configuration_stops_it_for_good_and_says_why(storing: Container) -> None:
    storing.run("cp /etc/sbus/store.toml /tmp/good && echo 'limit = 1' >>/etc/sbus/store.toml")
    try:
        assert storing.run("systemctl restart sbus-store.service", check=False).status != 0
        assert storing.output("systemctl is-failed sbus-store.service") == "failed"
        storing.wait_for("journalctl --unit=sbus-store.service --output=cat | grep 'store.toml' | grep --quiet limit")
    finally:
        storing.run("cp /tmp/good /etc/sbus/store.toml && systemctl restart sbus-store.service")
    storing.wait_for("sbusctl store last state/window | grep --quiet shut", user="bob")


def test_it_runs_as_its_user_without_capabilities(storing: Container) -> None:
    pid = storing.output(_MAIN_PID)
    assert storing.output(f"stat --format=%U /proc/{pid}; grep CapEff /proc/{pid}/status").split() == ["sbus-store", "CapEff:", "0" * 16]
    assert storing.output("stat --format='%U %a' /var/lib/sbus-store /var/lib/sbus-store/store.sqlite").splitlines() == [
        "sbus-store 700",
        "sbus-store 600",
    ]


def test_the_journal_explains_its_records(storing: Container) -> None:
    subjects = {entry.headers["Subject"] for entry in entries(CATALOG.with_name("sbus-store.catalog"))}
    storing.wait_for("journalctl SBUS_EVENT=started SYSLOG_IDENTIFIER=sbus-store | grep --quiet started")
    assert any("started" in subject for subject in subjects)


def test_purge_removes_the_messages_and_the_bus_goes_on(storing: Container) -> None:
    storing.run("DEBIAN_FRONTEND=noninteractive apt-get purge --yes --quiet=2 sbus-store && systemctl daemon-reload")
    assert storing.run("pgrep --list-full --uid sbus-store", check=False).stdout == ""
    found = (
        "find / -xdev \\( -name '*sbus-store*' -o -name 'store.toml' -o -name '??-store.toml' \\) -not -path '/opt/*' -not -path '/proc/*'"
    )
    assert storing.output(f"{found} -not -path '/sys/*'") == ""
    storing.run("systemctl restart sbus.service")
    assert storing.output("sbusctl whoami", user="alice").startswith("!/cred/")
