"""The parameters that completion reads are those of typer."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from sbusd.ctl.application import application
from sbusd.ctl.completion.parameters import parameters_of
from sbusd.ctl.group import CALLABLE, command_function
from sbusd.ctl.settings import common_options


def _group() -> Any:
    return typer.main.get_command(application())


@pytest.mark.parametrize("name", ["", *CALLABLE])
def test_they_are_those_of_typer(name: str) -> None:
    group = command = _group()
    for word in name.split():
        command = command.get_command(None, word)
    declared = parameters_of(command_function(name) if name else common_options)
    common = {each.name for each in group.params}
    own = [each for each in command.params if not name or each.name not in common]
    assert {each.name for each in declared} == {each.name for each in own}
    for each in own:
        found = next(one for one in declared if one.name == each.name)
        is_option = each.param_type_name == "option"
        assert set(found.opts) == (set(each.opts) if is_option else set())
        assert found.takes_value == (not is_option or not each.is_flag)
        assert found.repeats == (each.multiple if is_option else each.nargs == -1)


def test_what_is_not_declared_for_typer_is_an_error() -> None:
    def plain(key: str) -> None:
        del key

    with pytest.raises(TypeError, match="key is not annotated"):
        parameters_of(plain)
