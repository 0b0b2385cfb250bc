"""Units that messages start: the package of the trigger on a booted machine, with the journal feed, two users, and hostile messages."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.catalog import CATALOG, entries
from tests.support.container import Container
from tests.support.packages import Packages
from tests.system.conftest import APT_INSTALL, BUS, boot

RULES = """
[[on]]
keys = "journal/fragile.service/"
from = ["sbus-feed"]
match = { MESSAGE_ID = "d9b373ed55a64feb8242e02dbe79a49c" }
start = "repair.service"

[[on]]
keys = "job/"
from = ["alice"]
start = "job@.service"
burst = { count = 20, interval = "1min" }

[[on]]
keys = "mail-room/"
from = ["alice"]
start = "mail@.service"
instance = "message"

[[on]]
keys = "missing/"
from = ["alice"]
start = "missing.service"

[[on]]
keys = "rpc/backup"
when = "no-service"
from = ["alice"]
start = "backup.service"

[[on]]
keys = "rpc/fragile"
when = "no-service"
from = ["alice"]
start = "broken.service"

[[on]]
keys = "rpc/absent"
when = "no-service"
from = ["alice"]
start = "absent.service"
"""

FRAGILE = """[Service]
ExecStart=/bin/false
"""

REPAIR = """[Service]
Type=oneshot
EnvironmentFile=%t/sbus-trigger/%n/environment
ExecStart=/bin/sh -c 'echo $SBUS_KEY >>/tmp/repaired'
"""

JOB = """[Service]
Type=oneshot
User=bob
StandardInput=file:%t/sbus-trigger/%n/payload
ExecStart=/bin/sh -c 'echo "$0" "$(cat)" >>/tmp/jobs' %i
"""

MAIL = """[Service]
Type=oneshot
User=bob
EnvironmentFile=%t/sbus-trigger/%n/environment
LoadCredential=payload:%t/sbus-trigger/%n/payload
ExecStart=/bin/sh -c 'echo "$SBUS_SENDER_UID" "$SBUS_KEY" "$(cat $CREDENTIALS_DIRECTORY/payload)" >>/tmp/mails'
"""

BACKUP = """[Service]
User=bob
ExecStart=sbusctl serve backup --exec sh -- -c 'echo "$SBUS_CALLER_USER: $(cat)"'
"""

BROKEN = """[Service]
Type=oneshot
ExecStart=/bin/false
"""

USER_RULES = """
[[on]]
keys = "mine/"
from = ["alice"]
start = "mine.service"
"""

USER_ENV = "XDG_RUNTIME_DIR=/run/user/$(id -u)"

HOSTILE_KEYS = (
    b"job/../../../etc/passwd",
    b"job/--help",
    b"job/a\nExecStart=x",
    b"job/'; touch pwned; '",
    b"job/x.service",
    b"job/%n",
    b"job/" + b"n" * 300,
    b"job/\xff\x01",
)


@pytest.fixture(scope="module")
def firing(built: Packages) -> Iterator[Container]:
    """A machine with the packages, the journal feed and rules, as an administrator would set it up."""
    machine = boot(built, installed=BUS)
    try:
        machine.run(f"{APT_INSTALL} /opt/packages/{built.trigger.name}")
        assert machine.output("systemctl is-enabled sbus-trigger.service || true") == "disabled"
        machine.run("install -D --mode=644 --target-directory=/etc/sbus/sbusd.toml.d /usr/share/sbus/50-journal.toml")
        machine.run("systemctl try-reload-or-restart sbus.service && systemctl enable --now sbus-feed@journal.service")
        for name, text in (
            ("fragile", FRAGILE),
            ("repair", REPAIR),
            ("job@", JOB),
            ("mail@", MAIL),
            ("backup", BACKUP),
            ("broken", BROKEN),
        ):
            machine.run(f"cat >/etc/systemd/system/{name}.service", stdin=text)
        machine.run("install -m 666 /dev/null /tmp/jobs && install -m 666 /dev/null /tmp/mails && systemctl daemon-reload")
        machine.run("cat >/etc/sbus/trigger.toml", stdin=RULES)
        machine.run("sbus-trigger --check && systemctl enable --now sbus-trigger.service")
        yield machine
    finally:
        machine.stop()


def counts(machine: Container, rule: str) -> dict[str, int]:
    """Return the counters of a rule."""
    state = json.loads(machine.output("sbusctl call trigger/status"))
    (found,) = [each["counts"] for each in state["rules"] if each["name"] == rule]
    result: dict[str, int] = found
    return result


def test_a_unit_that_fails_starts_another(firing: Container) -> None:
    firing.run("systemctl start fragile.service", check=False)
    firing.wait_for("grep --line-regexp --quiet journal/fragile.service/warning /tmp/repaired")


def test_a_unit_of_another_user_reads_the_message_and_its_sender(firing: Container) -> None:
    firing.run("sbusctl pub job/first hello && sbusctl pub mail-room/a-b dear && sbusctl pub mail-room/a-b bob", user="alice")
    uid = firing.output("id --user alice")
    firing.wait_for("grep --line-regexp --quiet 'job-first hello' /tmp/jobs")
    firing.wait_for(f"grep --line-regexp --quiet '{uid} mail-room/a-b dear' /tmp/mails")
    firing.wait_for(f"grep --line-regexp --quiet '{uid} mail-room/a-b bob' /tmp/mails")
    assert firing.output("stat --format='%U %a' /run/sbus-trigger") == "root 700"
    assert firing.run("ls /run/sbus-trigger", user="bob", check=False).status != 0


def test_another_user_starts_nothing_and_forges_nothing(firing: Container) -> None:
    before = counts(firing, "start job@.service")
    firing.run("sbusctl pub job/forged stolen", user="bob")
    forged = firing.run("sbusctl pub trigger/fired '{}'", user="bob", check=False)
    assert "only the trigger publishes its events and state" in forged.stderr
    assert firing.run("sbusctl pub journal/fragile.service/err '{}'", user="bob", check=False).status != 0
    firing.wait_for("sbusctl call trigger/status | grep --quiet '\"wrong_sender\": 1'")
    assert counts(firing, "start job@.service")["actions"] == before["actions"]
    assert firing.run("grep stolen /tmp/jobs", check=False).status != 0
    denied = firing.run("sbusctl call trigger/status", user="bob", check=False)
    assert "may not call trigger/status" in denied.stderr


def test_no_key_is_a_path_an_option_or_another_unit(firing: Container) -> None:
    """Alice may start instances, and cannot escape from them."""
    before = counts(firing, "start job@.service")
    send = f"from sbus import Bus\nwith Bus.connect() as bus:\n    for number, key in enumerate({HOSTILE_KEYS!r}):\n"
    firing.run("python3 -", user="alice", stdin=f"{send}        bus.publish(key, b'attack%d' % number)\n")
    started = f"test $(grep --count attack /tmp/jobs) -eq {len(HOSTILE_KEYS) - 1}"
    if firing.run(f"for n in $(seq 60); do {started} && exit 0; sleep 1; done; exit 1", check=False).status:
        raise AssertionError(firing.output("cat /tmp/jobs; sbusctl call trigger/status; journalctl --no-pager --lines=60"))
    after = counts(firing, "start job@.service")
    assert (after["invalid"], after.get("failed", 0)) == (before.get("invalid", 0) + 1, before.get("failed", 0))
    assert after["actions"] == before["actions"] + len(HOSTILE_KEYS) - 1
    assert firing.run("ls /pwned /pwned*", check=False).status != 0
    jobs = firing.output("cat /tmp/jobs")
    assert "job-..-..-..-etc-passwd attack0" in jobs
    assert "job-a\\x0aExecStart\\x3dx attack2" in jobs
    assert "job-\\xff\\x01 attack7" in jobs


def test_a_call_starts_its_service_and_gets_its_answer(firing: Container) -> None:
    assert firing.output("systemctl is-active backup.service || true") == "inactive"
    assert firing.output("sbusctl call backup home", user="alice") == "alice: home"
    assert firing.output("systemctl is-active backup.service") == "active"
    assert counts(firing, "start backup.service")["succeeded"] == 1
    firing.run("systemctl stop backup.service")
    refused = firing.run("sbusctl call backup home", user="bob", check=False)
    assert "may not start backup.service" in refused.stderr
    assert firing.output("systemctl is-active backup.service || true") == "inactive"


def test_a_service_that_cannot_start_is_an_error_of_the_call_at_once(firing: Container) -> None:
    for command, unit, words in (("fragile", "broken.service", "control process exited"), ("absent", "absent.service", "not found")):
        failed = firing.run(f"sbusctl call --timeout 3600 {command}", user="alice", check=False)
        assert failed.status != 0
        assert f"no service for '{command}': cannot start {unit}: " in failed.stderr
        assert words in failed.stderr


def test_no_other_user_serves_the_start_of_services(firing: Container) -> None:
    forged = firing.run("sbusctl serve trigger/start/backup --exec cat", user="bob", check=False)
    assert "only the trigger serves its calls" in forged.stderr


def test_a_flood_is_bounded_and_counted(firing: Container) -> None:
    before = counts(firing, "start job@.service")
    flood = "from sbus import Bus\nwith Bus.connect() as bus:\n    [bus.publish(f'job/flood-{n}', b'x') for n in range(1000)]"
    firing.run("python3 -", user="alice", stdin=flood)
    firing.wait_for("sbusctl call trigger/status | grep --quiet over_burst")
    after = counts(firing, "start job@.service")
    assert after["accepted"] - before["accepted"] <= 40
    assert after["over_burst"] > 0


def test_a_failure_is_logged_with_its_reason(firing: Container) -> None:
    firing.run("sbusctl pub missing/x", user="alice")
    firing.wait_for("journalctl SBUS_EVENT=failed SYSLOG_IDENTIFIER=sbus-trigger | grep --quiet 'missing.service not found'")
    subjects = {entry.headers["Subject"] for entry in entries(CATALOG.with_name("sbus-trigger.catalog"))}
    firing.wait_for(f"journalctl -x SBUS_EVENT=failed | grep --quiet '{next(each for each in subjects if 'not started' in each)}'")


def test_it_runs_as_root_without_capabilities(firing: Container) -> None:
    pid = firing.output("systemctl show --value --property=MainPID sbus-trigger.service")
    assert firing.output(f"stat --format=%U /proc/{pid}; grep CapEff /proc/{pid}/status").split() == ["root", "CapEff:", "0" * 16]


def test_a_user_has_a_trigger_for_units_of_the_user(firing: Container) -> None:
    """Its messages come from the user's bus. Bob can neither reach that bus nor start anything."""
    firing.run("loginctl enable-linger alice")
    firing.wait_for("systemctl is-active user@$(id --user alice).service")
    mine = "[Service]\nType=oneshot\nExecStart=/bin/sh -c 'id -un >>%h/mine'\n"
    firing.run("mkdir -p .config/systemd/user .config/sbus && cat >.config/systemd/user/mine.service", user="alice", stdin=mine)
    firing.run("cat >.config/sbus/trigger.toml", user="alice", stdin=USER_RULES)
    firing.run("systemctl --user --machine=alice@ daemon-reload")
    firing.run("systemctl --user --machine=alice@ enable --now sbus.socket sbus-trigger.service")
    firing.wait_for(f"{USER_ENV} sbusctl --user pub mine/x && grep --line-regexp --quiet alice mine", user="alice")
    socket = firing.output("echo /run/user/$(id --user alice)/sbus.socket")
    assert firing.run(f"sbusctl --address {socket} pub mine/x", user="bob", check=False).status != 0


def test_restarts_of_bus_and_trigger_keep_it_working(firing: Container) -> None:
    firing.run("systemctl restart sbus-trigger.service sbus.service")
    firing.wait_for("sbusctl pub job/again later && sleep 1 && grep --quiet 'job-again later' /tmp/jobs", user="alice")


def test_purge_leaves_nothing_and_the_bus_goes_on(firing: Container) -> None:
    firing.run("DEBIAN_FRONTEND=noninteractive apt-get purge --yes --quiet=2 sbus-trigger && systemctl daemon-reload")
    found = (
        "find / -xdev \\( -name '*sbus-trigger*' -o -name '*trigger.toml' \\) -not -path '/opt/*' -not -path '/proc/*' -not -path '/home/*'"
    )
    assert firing.output(f"{found} -not -path '/sys/*' -not -path '/run/user/*'") == ""
    firing.run("systemctl restart sbus.service")
    assert firing.output("sbusctl whoami", user="alice").startswith("!/cred/")
