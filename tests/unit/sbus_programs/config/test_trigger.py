"""trigger.toml: valid rules, and one clear line for each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbus_programs.config.documents import read_settings
from sbus_programs.config.files import ConfigError
from sbus_programs.config.trigger import EVERY_USER, Rate, TriggerSettings

ON = '[[on]]\nkeys = "a/"\nfrom = [0]\n'
START = ON + 'start = "x.service"\n'
TEMPLATE = ON + 'start = "x@.service"\n'
CALLED = START.replace("a/", "rpc/backup") + 'when = "no-service"\n'


def read(folder: Path, text: str) -> TriggerSettings:
    """Return the settings in *text*."""
    file = folder / "trigger.toml"
    file.write_text(text)
    return read_settings([file], TriggerSettings)


def test_rules_are_read(tmp_path: Path) -> None:
    text = '[[on]]\nkeys = ["a/", "b*/c"]\nfrom = ["root", 1000, "*"]\nrestart = "p@.service"\nname = "page"\ninstance = 2\n'
    text += 'match = { MESSAGE = "*full*", PRIORITY = "3" }\nburst = { count = 2, interval = "10min" }\n'
    page, plain = read(tmp_path, text + START + 'match = "on"\n').rules
    assert (page.keys, page.senders, page.action, page.unit, page.title) == (
        ("a/", "b*/c"),
        (0, 1000, EVERY_USER),
        "restart",
        "p@.service",
        "page",
    )
    assert (page.is_template, page.instance, page.match) == (True, 2, (("MESSAGE", "*full*"), ("PRIORITY", "3")))
    assert (page.burst, page.loop, page.on_gap) == (Rate(2, 600.0), Rate(60, 600.0), "ignore")
    assert (plain.keys, plain.match, plain.title, plain.is_template) == (("a/",), (("", "on"),), "start x.service", False)


def test_rules_for_services_on_demand(tmp_path: Path) -> None:
    text = CALLED.replace('"rpc/backup"', '["rpc/backup", "rpc/a/b"]').replace("x.service", "x@.service")
    (rule,) = read(tmp_path, text + 'instance = 2\nservice_timeout = "1min"\n').rules
    assert (rule.commands, rule.unit, rule.service_timeout) == (("backup", "a/b"), "x@.service", 60.0)
    # Another rule may have the same key for messages.
    assert len(read(tmp_path, CALLED + START.replace("a/", "rpc/backup").replace("x.s", "y.s")).rules) == 2


@pytest.mark.parametrize("unit", ["x.service", "a-b:c_d.timer", r"dev-sda\x2d1.mount", "page@.service", "page@one.service"])
def test_names_of_units(tmp_path: Path, unit: str) -> None:
    assert read(tmp_path, ON + f"start = '{unit}'").rules[0].unit == unit


@pytest.mark.parametrize(
    "unit", ["x", "../x.service", "--help.service", ".service", "@.service", "a b.service", "a/b.service", "x.device", ""]
)
def test_what_is_not_the_name_of_a_unit(tmp_path: Path, unit: str) -> None:
    with pytest.raises(ConfigError, match="must be the full name of a unit"):
        read(tmp_path, ON + f'start = "{unit}"')


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[[on]]\nkeys = "a/"\nstart = "x.service"', "on.1.from: required key is missing"),
        (START.replace("[0]", "[]"), 'from is empty; name the users whose messages count, or write from = ["*"]'),
        (START.replace("[0]", '["no-such-user"]'), 'unknown user "no-such-user"'),
        (ON, "exactly one of start, restart, reload, stop must name a unit"),
        (START + 'stop = "y.service"', "found start and stop"),
        (START.replace('"a/"', "[]"), "must be a pattern"),
        (START.replace("a/", "!/cred/"), 'begin with "!/", start no units'),
        (START.replace("a/", "trigger/fired"), "the keys of the trigger itself"),
        (START.replace("a/", "a*b/"), 'no key matches the pattern "a*b/"'),
        (START + "instance = 1", "instance needs a template"),
        (TEMPLATE + "instance = 0", 'must be "key", "message", or the number of a segment'),
        (TEMPLATE + "instance = true", 'must be "key", "message", or the number of a segment'),
        (TEMPLATE + 'on_gap = "fire"', "needs a unit without"),
        (START + "match = {}", "must be a text"),
        (START + 'match = { x = "" }', "must be a text of 1 to 256 characters"),
        (START + 'burst = { count = 0, interval = "1s" }', "must be 1 to 10000"),
        (START + "burst = { count = 1 }", "required key is missing"),
        (START + START, 'two tables [[on]] have the name "start x.service"'),
        (START + 'when = "no-service"', 'when = "no-service" needs keys of calls without "*", such as "rpc/backup", not "a/"'),
        (CALLED.replace("rpc/backup", "rpc/*"), 'needs keys of calls without "*"'),
        (CALLED.replace("rpc/backup", "rpc/"), 'needs keys of calls without "*"'),
        (CALLED.replace("rpc/backup", f"rpc/{'x' * 250}"), 'needs keys of calls without "*"'),
        (CALLED.replace("start =", "restart ="), "cannot be used with restart"),
        (CALLED + 'match = "on"', "cannot be used with match"),
        (CALLED + "vouched_by = [0]", "cannot be used with vouched_by"),
        (CALLED + 'on_gap = "fire"', 'cannot be used with on_gap = "fire"'),
        (CALLED.replace("x.service", "x@.service") + 'instance = "message"', 'cannot be used with instance = "message"'),
        (CALLED + 'service_timeout = "1h"', "service_timeout: must be 100ms to 10min"),
        (START + 'service_timeout = "1s"', 'service_timeout needs when = "no-service"'),
        (CALLED + CALLED.replace("x.s", "y.s"), 'two tables [[on]] with when = "no-service" have the key "rpc/backup"'),
        (START + 'name = "a\\nb"', "name must be at most"),
        (START + "form = []", "unknown key; did you mean from?"),
        ("".join(START.replace("x.s", f"x{n}.s") for n in range(65)), "too many tables [[on]]: 65, at most 64"),
    ],
)
def test_a_mistake_is_one_clear_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
