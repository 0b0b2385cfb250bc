"""Whom the bus takes the caller for."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from sbusd.ctl.main import application


class FakeBus:
    """Knows one thing."""

    def __enter__(self) -> FakeBus:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def whoami(self) -> bytes:
        return b"!/cred/1/2/3"


@pytest.mark.parametrize(("arguments", "said"), [([], "!/cred/1/2/3\n"), (["--json=short"], '{"key":"!/cred/1/2/3"}\n')])
def test_it_prints_the_key(monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str) -> None:
    monkeypatch.setattr("sbusd.ctl.settings.Settings.connect", lambda *_: FakeBus())
    result = CliRunner().invoke(application(), ["whoami", *arguments])
    assert (result.exit_code, result.stdout, result.stderr) == (0, said, "")
