"""Whether the client is the compiled one."""

from __future__ import annotations

import pytest

from sbusd.client import message_batch as runs
from sbusd.ctl.checks.finding import Result
from sbusd.ctl.checks.package import check_package


def test_a_package_that_was_not_built_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "IS_COMPILED", False)
    finding = check_package()
    assert finding.result is Result.WARN
    assert "make build" in finding.advice
    monkeypatch.setattr(runs, "IS_COMPILED", True)
    assert check_package().result is Result.OK
