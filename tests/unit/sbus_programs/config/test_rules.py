"""The rules' own rules; how files spell them is tested with the files."""

from __future__ import annotations

import pytest

from sbus_programs.config.rules import (
    MAX_PREFIX_BYTES,
    MAX_PUBLISH_RULES,
    MAX_RULES,
    Comment,
    KeyPrefix,
    Origin,
    PolicyRule,
    UnitName,
    check_policy,
    is_unit,
)


@pytest.mark.parametrize("value", ["", "lab/", "ä", "!/cred/", "x" * MAX_PREFIX_BYTES])
def test_a_prefix_is_accepted(value: str) -> None:
    assert KeyPrefix().parse(value) == value


@pytest.mark.parametrize("value", [1, None, [], "a\0", "lab/*", "ä" * (MAX_PREFIX_BYTES // 2 + 1)])
def test_an_invalid_prefix_is_rejected_in_one_line(value: object) -> None:
    with pytest.raises(ValueError) as refusal:
        KeyPrefix().parse(value)
    assert str(refusal.value).isprintable()


UNITS = ["nginx.service", "app@*.service", "app@1.service", "app@a@b.service", "session-3.scope", r"a\x2db.mount", "_x.service", "a:b.swap"]
NO_UNITS = ["nginx", "", "*.service", "nginx*.service", "app@.service", "app@x*.service", "a/b.service", "x.slice", "x.timer", "@x.service"]


@pytest.mark.parametrize("value", UNITS)
def test_a_unit_is_accepted(value: str) -> None:
    assert UnitName().parse(value) == value
    assert is_unit(value) is ("*" not in value)


@pytest.mark.parametrize("value", [*NO_UNITS, "ä.service", "a.service\n", "a\0.service", "x" * 248 + ".service", 1, None, ["a.service"]])
def test_what_is_no_unit_is_rejected_in_one_line(value: object) -> None:
    with pytest.raises(ValueError, match="must be a unit, such as") as refusal:
        UnitName().parse(value)
    assert str(refusal.value).isprintable()


def test_a_rule_names_its_units_and_instances_of_its_templates() -> None:
    rule = PolicyRule("a", publish="deny", units=("nginx.service", "app@*.service", "db@main.service", "a@*.scope"))
    named = ["nginx.service", "app@1.service", "app@x@y.service", "db@main.service", "a@1.scope", r"app@a\x2db.service"]
    others = ["", "nginx.scope", "nginx@1.service", "app.service", "app@1.scope", "db@x.service", "a@1.service", "xapp@1.service", "app@"]
    assert [unit for unit in [*named, *others] if rule.names_unit(unit)] == named


@pytest.mark.parametrize("value", [1, "a\nb", "\x1b[2J", "x" * 201])
def test_an_invalid_comment_is_rejected(value: object) -> None:
    with pytest.raises(ValueError, match="must be one line of at most 200 characters"):
        Comment().parse(value)
    assert Comment().parse("x" * 200) == "x" * 200


def test_no_file_can_set_the_origin_of_a_rule() -> None:
    assert Origin().parse(Origin("f", 2)) == Origin("f", 2)
    with pytest.raises(ValueError, match="unknown key"):
        Origin().parse("f")


def test_a_rule_has_a_name_for_people() -> None:
    rule = PolicyRule("a", publish="deny", origin=Origin("f.toml", 2))
    assert rule.name == "rule 2 of f.toml"
    assert PolicyRule("a", publish="deny", origin=rule.origin, comment="keep out").name == "rule 2 of f.toml: keep out"


def test_a_rule_that_decides_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="the rule decides nothing"):
        PolicyRule("a")


def test_the_number_of_rules_is_limited() -> None:
    check_policy((PolicyRule("a", publish="deny"),) * MAX_PUBLISH_RULES + (PolicyRule("a", subscribe="deny"),) * 937)
    with pytest.raises(ValueError, match="rules with publish: 64"):
        check_policy((PolicyRule("a", publish="deny"),) * (MAX_PUBLISH_RULES + 1))
    with pytest.raises(ValueError, match="rules: 1001"):
        check_policy((PolicyRule("a", subscribe="deny"),) * (MAX_RULES + 1))
