"""What must be changed at a Redis that can lose confirmed messages."""

from __future__ import annotations

import pytest

from sbusd.relay.redis.durability import QUESTION, durability_problem


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"appendonly": "yes", "appendfsync": "always"}, ""),
        ({"appendonly": "no", "appendfsync": "always"}, "appendonly is no, set it to yes"),
        ({"appendonly": "yes", "appendfsync": "everysec"}, "appendfsync is everysec, set it to always"),
        ({}, "appendonly is unknown, set it to yes, appendfsync is unknown, set it to always"),
    ],
)
def test_it_names_each_setting_and_the_value_that_it_needs(settings: dict[str, str], problem: str) -> None:
    assert durability_problem(settings) == problem


def test_the_question_names_the_settings() -> None:
    assert QUESTION == ("CONFIG GET", "appendonly", "appendfsync")
