"""A damaged checkpoint is found before Spark starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbus_archive.pipeline.errors import PermanentError
from sbus_archive.pipeline.live.job import check_checkpoint, query_id

_OFFSET = 'v1\n{"batchWatermarkMs":0}\n{"listener": "ab", "rows": 7}\n'
_COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'


def checkpoint(folder: Path, **files: str) -> Path:
    """Write the files of a checkpoint as Spark does; *files* replaces some."""
    contents = {"metadata": '{"id":"q"}', "offsets/9": "damaged", "offsets/10": _OFFSET, "commits/9": _COMMIT, "commits/.9.crc": "x"}
    for name, content in {**contents, **{name.replace("_", "/"): content for name, content in files.items()}}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def test_a_missing_or_whole_checkpoint_is_valid(tmp_path: Path) -> None:
    check_checkpoint(tmp_path / "none")
    check_checkpoint(checkpoint(tmp_path))
    assert query_id(tmp_path) == "q"


@pytest.mark.parametrize(
    ("name", "content"),
    [("metadata", ""), ("metadata", "{}"), ("offsets_10", ""), ("offsets_10", "v1\n{"), ("offsets_10", "v1"), ("commits_9", "v2\n{}")],
)
def test_a_damaged_file_is_one_error(tmp_path: Path, name: str, content: str) -> None:
    checkpoint(tmp_path, **{name: content})
    with pytest.raises(PermanentError) as caught:
        check_checkpoint(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / name.replace('_', '/')}: damaged checkpoint. Remove the directory {tmp_path} ")
