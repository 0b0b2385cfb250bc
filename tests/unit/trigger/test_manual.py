"""sbus-trigger(8) and trigger.toml(5) document every option, key, counter and log message, with the defaults of the code."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
import typer.main

from sbusd.client.rpc.calls import MAX_STARTS
from sbusd.config.loading import load_settings
from sbusd.config.trigger import MAX_RULES, MAX_UNIT_BYTES, Rate, TriggerRule, TriggerSettings
from sbusd.systemd.log_records import QUIET_SECONDS
from sbusd.trigger import jobs, main, message_files, rule_state, service_starts
from sbusd.trigger.log_messages import MESSAGES
from tools.stage import ROOT

PAGE = Path(ROOT, "man/sbus-trigger.8").read_text()
CONFIGURATION = Path(ROOT, "man/trigger.toml.5").read_text()

COUNTERS = {
    *(
        "messages",
        "accepted",
        "wrong_sender",
        "unmatched",
        "repeated",
        "invalid",
        "over_burst",
        "over_burst_of_all",
        "loop",
        "suspended",
        "overflow",
    ),
    *("served", "coalesced", "actions", "succeeded", "failed", "unknown", "abandoned", "gaps", "lost"),
}


def section(title: str, head: str = "Sh") -> str:
    """Return one section of the page."""
    return re.split(r"\n\.S[hs] ", PAGE.split(f"\n.{head} {title}\n")[1])[0]


def words(text: str) -> str:
    """Return text as the reader sees it, in one line and without macros."""
    return " ".join(re.sub(r"^\.\w+ ?", "", text, flags=re.MULTILINE).split())


def test_every_option_is_documented_and_no_other() -> None:
    offered = {frozenset(each.opts) for each in typer.main.get_command(main.app).params if each.param_type_name == "option"}
    items = re.findall(r"^\.It (Fl .*)$", section("OPTIONS"), re.MULTILINE)
    documented = {frozenset(f"-{name}" for name in re.findall(r"Fl (-?\w[\w-]*)", item)) for item in items}
    assert documented == {each - {"--help"} for each in offered} - {frozenset()}


def _default(text: str) -> object:
    """Return the default that the page has as the value of the code."""
    text = text.replace(r"\(dq", '"')
    if found := re.fullmatch(r'\{ count = (\d+), interval = "(\d+)(s|min)" \}', text):
        return Rate(int(found[1]), float(found[2]) * (60 if found[3] == "min" else 1))
    if text in ("[]", "{}"):
        return ()
    if found := re.fullmatch(r"Qq (\d+)s", text):
        return float(found[1])
    return int(text) if text.isdigit() else re.sub(r"^Qq ?", "", text)


@pytest.mark.parametrize("kind", [TriggerSettings, TriggerRule], ids=lambda kind: kind.__name__)
def test_keys_and_defaults(kind: type) -> None:
    parts = re.split(r"^\.El$", CONFIGURATION, flags=re.MULTILINE)
    found = dict(re.findall(r"^\.It Cm (\w+)(?: No = (.*))?$", parts[0 if kind is TriggerSettings else 1], re.MULTILINE))
    code = {{"senders": "from"}.get(each.name, each.name): each for each in fields(kind) if each.name not in {"origin", "rules"}}
    assert list(found) == sorted(code, key=lambda name: list(found).index(name))
    for name, default in found.items():
        field = code[name]
        value = field.default_factory() if callable(field.default_factory) else field.default
        assert value is MISSING if not default else value == _default(default), name


def test_bounds_are_documented() -> None:
    text = words(PAGE)
    assert f"There can be {MAX_RULES}." in words(CONFIGURATION)
    assert f"more than {MAX_UNIT_BYTES} bytes" in words(CONFIGURATION)
    assert f"{jobs.MAX_RUNNING} actions run at the same time, {jobs.MAX_RUNNING_OF_USER} of them for one user" in text
    assert f"Actions for {jobs.MAX_UNITS} other units wait, {jobs.MAX_UNITS_OF_USER} of them for one user" in text
    assert f"more than {message_files.MAX_UNITS} units or {message_files.MAX_BYTES >> 20} MiB" in text
    assert message_files.KEPT_SECONDS == 60
    assert (rule_state.ALL_USERS, rule_state.FIRST_ACTIONS) == (10, 5)
    assert "ten times this number. Half of that is kept" in words(CONFIGURATION)
    assert f"wait for it, up to {service_starts.MAX_CALLS_OF_USER} of each user" in text
    assert f"If {service_starts.MAX_CALLS} of all users wait, each user can still have one" in text
    assert service_starts._LAST_PAUSE == 0.5
    assert f"at most {MAX_STARTS} times for a call" in words(Path(ROOT, "man/sbus-rpc.7").read_text())


def test_every_counter_is_documented() -> None:
    items = re.findall(r"^\.It Cm (.*)$", section("Counters", head="Ss"), re.MULTILINE)
    assert {name for names in items for name in names.split(" , ")} == COUNTERS
    code = "".join(path.read_text() for path in Path(ROOT, "sbusd/trigger").glob("*.py"))
    assert {name for name in COUNTERS if f'"{name}"' not in code} == set()


def test_every_log_message_is_documented() -> None:
    text = section("LOG MESSAGES")
    named = [name for names in re.findall(r"^\.It Cm (.*)$", text, re.MULTILINE) for name in names.split(" , ")]
    assert named == [message.name for message in MESSAGES]
    assert f"once in {QUIET_SECONDS:g} s" in words(text)


def test_the_examples_and_the_file_of_the_package_are_valid(tmp_path: Path) -> None:
    shipped = Path(ROOT, "etc/trigger.toml")
    assert not load_settings(shipped, TriggerSettings, required=True).rules
    examples = [re.sub(r"^#(?=[\[a-z])", "", shipped.read_text(), flags=re.MULTILINE)]
    examples += [
        found for page in (PAGE, CONFIGURATION) for found in re.findall(r"^(\[\[on\]\]\n.*?)^\.Ed", page, re.MULTILINE | re.DOTALL)
    ]
    assert len(examples) == 6
    for text in examples:
        file = tmp_path / "trigger.toml"
        file.write_text(text.replace("sbus-feed", "root"))
        assert load_settings(file, TriggerSettings, required=True).rules
