"""What a reader of an archive says of what it leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbus_archive.pipeline.source.archive_reader import warn_skipped
from sbus_archive.storage.files import RecordError


def test_a_skipped_entry_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    warn_skipped(RecordError(Path("/a/index/x\n.json"), "invalid index entry"))
    assert capsys.readouterr().err == "sbus: skipped: /a/index/x\\x0a.json: invalid index entry\n"
