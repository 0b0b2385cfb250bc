"""sbus-trigger on a real bus, with messages of two users."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sbus import Bus
from tests.support.daemons import Daemon, StartDaemon
from tests.support.relays import wait_for
from tests.support.trigger_programs import TriggerProgram
from tests.support.users import FIRST, SECOND, User
from tests.support.vouched_messages import publish_vouched
from tools.stage import ROOT

RULE = f'[[on]]\nkeys = "job/"\nfrom = [{FIRST.uid}]\nstart = "work.service"\n'
TEMPLATE = (
    f'[[on]]\nkeys = "page/"\nfrom = [{FIRST.uid}, {SECOND.uid}]\nstart = "page@.service"\nburst = {{ count = 5, interval = "1h" }}\n'
)
EVERYBODY = '[[on]]\nkeys = "page/"\nfrom = ["*"]\nstart = "page@.service"\n'
VOUCHED = f'[[on]]\nkeys = "store/"\nfrom = [{FIRST.uid}]\nvouched_by = ["root"]\nrestart = "vouched.service"\n'
ON_GAP = f'[[on]]\nkeys = "state/"\nfrom = [{FIRST.uid}]\nreload = "state.service"\non_gap = "fire"\n'
BROKEN = f'[[on]]\nname = "{"é" * 100}"\nkeys = "broken/"\nfrom = [{FIRST.uid}]\nstop = "broken.service"\n'
JOURNAL = '[[on]]\nkeys = "journal/*/err"\nfrom = ["root"]\nmatch = { MESSAGE = "*disk*full*" }\nstart = "clean.service"\n'

pytestmark = pytest.mark.usefixtures("needs_root")


SHARES_BUS = True


def publish(bus: Daemon, user: User | None, *messages: tuple[str, bytes]) -> None:
    """Publish messages as *user*; the bus has routed them when this returns."""
    opened = None if user is None else user.connect(bus.path)
    with Bus.connect(bus.path if opened is None else f"/dev/fd/{opened.fileno()}") as client:
        if opened is not None:
            opened.close()
        for key, payload in messages:
            client.publish(key, payload)
        client.ping()


def test_only_messages_of_the_named_user_start_the_unit(bus: Daemon, tmp_path: Path) -> None:
    with TriggerProgram(tmp_path, bus.path, RULE) as trigger:
        publish(bus, SECOND, ("job/1", b"forged"))
        publish(bus, None, ("job/1", b"of root"))
        publish(bus, FIRST, ("job/1", b"right"))
        trigger.wait_for_counts(messages=3, wrong_sender=2, accepted=1, succeeded=1)
        assert trigger.calls == [["start", "work.service"]]
        assert trigger.payloads == b"right"
        assert (tmp_path / "messages").stat().st_mode & 0o777 == 0o700
        assert f"its sender, user {SECOND.uid}, is not in from" in trigger.log


def test_instances_are_escaped_and_no_key_leaves_its_template(bus: Daemon, tmp_path: Path) -> None:
    with TriggerProgram(tmp_path, bus.path, TEMPLATE.replace("count = 5", "count = 50")) as trigger:
        keys = ("page/../../x", "page/--help", "page/a\nb", "page/x.service", "page/%i")
        publish(bus, FIRST, *((key, b"") for key in keys), ("page/" + "n" * 300, b""))
        trigger.wait_for_counts(messages=6, invalid=1, succeeded=5)
        units = sorted(call[1] for call in trigger.calls)
        assert units == sorted(
            [
                "page@page-..-..-x.service",
                r"page@page-\x2d\x2dhelp.service",
                r"page@page-a\x0ab.service",
                "page@page-x.service.service",
                r"page@page-\x25i.service",
            ]
        )
        assert sorted(os.listdir(tmp_path / "messages")) == units


def test_a_flood_of_one_user_does_not_use_up_the_limit_of_another(bus: Daemon, tmp_path: Path) -> None:
    with TriggerProgram(tmp_path, bus.path, TEMPLATE) as trigger:
        publish(bus, SECOND, *((f"page/flood-{number}", b"") for number in range(500)))
        trigger.wait_for_counts(messages=500, accepted=5, over_burst=495, succeeded=5)
        publish(bus, FIRST, ("page/mine", b""))
        trigger.wait_for_counts(accepted=6, succeeded=6)
        assert trigger.calls[-1] == ["start", "page@page-mine.service"]


def test_a_flood_of_one_rule_loses_no_message_of_another(bus: Daemon, tmp_path: Path) -> None:
    with TriggerProgram(tmp_path, bus.path, TEMPLATE + RULE) as trigger:
        assert trigger.process is not None
        trigger.process.send_signal(signal.SIGSTOP)
        publish(bus, FIRST, ("job/1", b"kept"))
        publish(bus, SECOND, *((f"page/{number}", bytes(2_000)) for number in range(20_000)))
        trigger.process.send_signal(signal.SIGCONT)
        trigger.wait_for_counts(rule=1, accepted=1, lost=0, succeeded=1)

        def is_complete() -> bool:
            counts = trigger.counts()
            return counts["messages"] + counts.get("lost", 0) == 20_000

        wait_for(is_complete, "every message of the flood is counted")


def test_messages_while_the_unit_runs_become_one_more_action_with_the_newest(bus: Daemon, tmp_path: Path) -> None:
    with TriggerProgram(tmp_path, bus.path, RULE) as trigger:
        trigger.hold.touch()
        publish(bus, FIRST, ("job/1", b"first "))
        wait_for(lambda: trigger.calls, "the first action")
        publish(bus, FIRST, ("job/2", b"second "), ("job/3", b"third "))
        trigger.wait_for_counts(accepted=3, actions=1, coalesced=1)
        trigger.hold.unlink()
        trigger.wait_for_counts(actions=2, succeeded=2)
        assert trigger.payloads == b"first third "


def test_a_vouched_message_counts_for_its_user_only_if_the_rule_trusts_the_service(daemon: StartDaemon, tmp_path: Path) -> None:
    rights = tmp_path / "sbusd.toml"
    rights.write_text("[rights]\nvouch = { users = [0] }\n")
    bus = daemon("-C", str(rights))
    local = b"!/store/!/cred/%d/%d/1" % (FIRST.gid, FIRST.uid)
    remote = b"!/host/alpha/!/cred/%d/%d/1" % (FIRST.gid, FIRST.uid)
    with TriggerProgram(tmp_path, bus.path, VOUCHED + RULE) as trigger:
        with Bus.connect(bus.path) as client:
            for key in ("store/x", "job/x"):
                publish_vouched(client, local, key)
                publish_vouched(client, remote, key)
            client.ping()
        trigger.wait_for_counts(rule=0, messages=2, accepted=1, wrong_sender=1, succeeded=1)
        trigger.wait_for_counts(rule=1, messages=2, wrong_sender=2)
        assert trigger.calls == [["restart", "vouched.service"]]


def test_a_restart_of_the_bus_is_a_gap_for_each_rule(daemon: StartDaemon, tmp_path: Path) -> None:
    bus = daemon()
    place = tmp_path / "bus"
    place.symlink_to(bus.path)
    with TriggerProgram(tmp_path, str(place), RULE + ON_GAP) as trigger:
        trigger.wait_for_counts(rule=1, gaps=1, succeeded=1)
        assert bus.stop() == 0
        again = daemon()
        place.unlink()
        place.symlink_to(again.path)
        wait_for(trigger.is_serving, "the trigger has the other bus")
        trigger.wait_for_counts(rule=0, gaps=2, actions=0)
        trigger.wait_for_counts(rule=1, gaps=2, succeeded=2)
        publish(again, FIRST, ("job/1", b""))
        trigger.wait_for_counts(rule=0, succeeded=1)
        assert trigger.calls == [["reload-or-restart", "state.service"]] * 2 + [["start", "work.service"]]
        assert "no connection to the bus" in trigger.log


def test_actions_that_wait_are_requested_when_the_trigger_stops(bus: Daemon, tmp_path: Path) -> None:
    with TriggerProgram(tmp_path, bus.path, RULE) as trigger:
        trigger.hold.touch()
        publish(bus, FIRST, ("job/1", b"1"))
        wait_for(lambda: trigger.calls, "the first action")
        publish(bus, FIRST, ("job/2", b"2"))
        trigger.wait_for_counts(accepted=2)
        assert trigger.process is not None
        trigger.process.terminate()
        wait_for(lambda: len(trigger.calls) == 2, "the second action")
        trigger.hold.unlink()
        assert trigger.process.wait(60.0) == 0
        assert trigger.calls[1] in (["--no-block", "start", "work.service"], ["start", "work.service"])


def test_a_failure_is_counted_logged_and_published(bus: Daemon, tmp_path: Path) -> None:
    with TriggerProgram(tmp_path, bus.path, BROKEN) as trigger, Bus.connect(bus.path) as client, client.subscribe("trigger/fired") as fired:
        publish(bus, FIRST, ("broken/1", b""))
        event = json.loads(next(iter(fired)).payload)
        assert (event["rule"], event["error"], event["uid"]) == ("é" * 100, "Unit broken.service not found.", FIRST.uid)
        trigger.wait_for_counts(failed=1)
        assert "stop of broken.service failed: Unit broken.service not found." in trigger.log


def test_a_line_of_the_journal_counts_once(bus: Daemon, tmp_path: Path) -> None:
    line = json.dumps({"__CURSOR": "s=1;i=2", "MESSAGE": "the disk /var is full"}).encode()
    other = json.dumps({"__CURSOR": "s=1;i=3", "MESSAGE": "hello"}).encode()
    with TriggerProgram(tmp_path, bus.path, JOURNAL) as trigger:
        publish(bus, None, *[("journal/db.service/err", each) for each in (line, other, line, b"[" * 100_000)])
        publish(bus, SECOND, ("journal/db.service/err", line.replace(b"i=2", b"i=9")))
        trigger.wait_for_counts(messages=5, accepted=1, unmatched=2, repeated=1, wrong_sender=1, succeeded=1)


def test_another_user_cannot_ask_for_the_status(bus: Daemon, tmp_path: Path) -> None:
    with TriggerProgram(tmp_path, bus.path, RULE):
        opened = SECOND.connect(bus.path)
        with Bus.connect(f"/dev/fd/{opened.fileno()}") as client:
            opened.close()
            with pytest.raises(Exception, match=f"user {SECOND.uid} may not call trigger/status"):
                client.call("trigger/status", timeout=60.0)


def test_a_trigger_of_a_user_calls_the_manager_of_the_user(bus: Daemon, tmp_path: Path) -> None:
    """On a bus that belongs to another user it publishes nothing."""
    trigger = TriggerProgram(tmp_path, bus.path, RULE, "--user")
    with Bus.connect(bus.path) as client, client.subscribe("trigger/") as announced:
        trigger.start(waits=False)
        wait_for(lambda: client.members("job/x"), "the subscription of the rule")
        publish(bus, FIRST, ("job/1", b""))
        wait_for(lambda: trigger.calls, "the action")
        assert trigger.calls == [["--user", "start", "work.service"]]
        assert trigger.stop() == 0
        assert announced.pending == 0
        assert client.members("rpc/trigger/status") == ()


def test_a_refused_pattern_ends_the_program_with_a_reason(daemon: StartDaemon, tmp_path: Path) -> None:
    bus = daemon(config='[[policy]]\nkeys = "job/"\nsubscribe = "deny"\n')
    trigger = TriggerProgram(tmp_path, bus.path, RULE)
    trigger.start(waits=False)
    assert trigger.process is not None
    assert trigger.process.wait(60.0) == os.EX_CONFIG
    assert "rule start work.service: the bus refuses its keys: " in trigger.log


@pytest.mark.parametrize(("policy", "is_open"), [("", True), ('keys = "job/"\npublish = "deny"', False)])
def test_a_check_names_rules_whose_keys_every_user_may_publish_to(
    daemon: StartDaemon, tmp_path: Path, policy: str, *, is_open: bool
) -> None:
    bus = daemon(config=f"[[policy]]\n{policy}\n" if policy else "")
    rules = tmp_path / "trigger.toml"
    rules.write_text(f'bus = "{bus.path}"\n{RULE}{EVERYBODY}')
    checked = check(rules)
    assert (checked.returncode, checked.stdout) == (0, "configuration is valid\n")
    assert ("every user may publish to job/: add a [[policy]]" in checked.stderr) is is_open
    assert "page/" not in checked.stderr, "a rule for every user"
    rules.write_text(f'bus = "{tmp_path}/none"\n{RULE}')
    assert check(rules).stderr.startswith("sbus-trigger: warning: cannot check who may publish to the keys of the rules: ")


def check(rules: Path) -> subprocess.CompletedProcess[str]:
    """Let the program check a configuration."""
    return subprocess.run(
        [sys.executable, "-m", "sbus_services.trigger.main", "--check", "-C", str(rules)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
