"""Tests of tools/stage.py, in a tree that others can read and in one that they cannot."""

from __future__ import annotations

import compileall
from pathlib import Path

import pytest

from tests.support.users import User
from tools import stage as module
from tools.stage import Stage, make_stage

pytestmark = pytest.mark.slow

_SHOW_WHERE = ["-c", "import sbusd, pydantic, os; print(os.path.dirname(sbusd.__file__))"]


def test_stage_is_usable_by_a_test_user(stage: Stage, first_user: User) -> None:
    result = first_user.run([stage.python, *_SHOW_WHERE], env=stage.env)
    assert result.returncode == 0, result.stderr
    assert Path(result.stdout.strip()) == (stage.folder or module.ROOT) / "sbusd"


def test_a_program_is_installed_by_pip_or_runs_the_same_function(tmp_path: Path) -> None:
    made = Stage(str(tmp_path / "python"), {})
    assert made.program("sbusctl", "version") == [made.python, "-c", "from sbusctl.main import main as run; run()", "version"]
    (tmp_path / "sbusctl").write_text("")
    assert made.program("sbusctl", "version") == [str(tmp_path / "sbusctl"), "version"]


def test_tree_is_copied_where_it_cannot_be_read(monkeypatch: pytest.MonkeyPatch, first_user: User) -> None:
    really_can_use = module._can_use
    monkeypatch.setattr(module, "_can_use", lambda made: made.folder is not None and really_can_use(made))
    assert all(compileall.compile_dir(module.ROOT / house, quiet=1) for house in module.HOUSES)
    made = make_stage()
    try:
        result = first_user.run([made.python, *_SHOW_WHERE], env=made.env)
        assert made.folder is not None
        assert result.stdout.strip() == str(made.folder / "sbusd"), result.stderr
        version = first_user.run(made.program("sbusctl", "version"), env=made.env)
        assert version.stdout.startswith("sbus"), version.stderr
        # Byte code is copied too: no other user can write it, so that each start would compile all that it imports.
        code = "import os.path, pydantic.main as a, sbusctl.main as b; print(*(os.path.isfile(each.__cached__) for each in (a, b)))"
        assert first_user.run([made.python, "-c", code], env=made.env).stdout == "True True\n"
    finally:
        made.remove()
    assert not made.folder.exists()
