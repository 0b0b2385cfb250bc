"""The checker of histories finds each fault that it is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.store_history import History, check

LEASE_SECONDS = 60.0
"""Longer than these histories, whose times are nanoseconds."""


def made(path: Path, *lines: str) -> History:
    """Return a history with *lines*: process and words; the times are their order."""
    path.write_text("".join(f"{number} {line}\n" for number, line in enumerate(lines)))
    return History(path)


GOOD = ("1 acknowledged a 1", "1 acknowledged b 2", "2 begin a 1 k 1", "2 end a 1 done", "2 begin b 2 k 1", "2 end b 2 done")


def test_a_possible_history_is_accepted(tmp_path: Path) -> None:
    assert check(made(tmp_path / "h", *GOOD), [], 3, {}, LEASE_SECONDS) == (2, 2)
    assert check(made(tmp_path / "h", *GOOD[:4]), [(2, "b")], 3, {}, LEASE_SECONDS) == (2, 1)
    assert check(made(tmp_path / "h", "2 begin a 1 k 1", "3 begin a 1 k 2"), [], 3, {2: 1}, LEASE_SECONDS) == (0, 1)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (GOOD[:4], "acknowledged and lost"),
        (("2 begin a 1 k 1", "3 begin a 1 k 1", "2 end a 1 done"), "two holders"),
        (("2 begin a 1 k 1", "2 end a 1 done", "3 begin a 1 k 1"), "after try"),
        (("2 begin a 1 k 1", "2 end a 1 done") + ("2 begin a 1 k 2",) * 3, "tried 4 times"),
        ((*GOOD[:2], "2 begin b 2 k 1", "2 end b 2 done", "2 begin a 1 k 1"), "out of order"),
    ],
)
def test_a_fault_is_found(tmp_path: Path, lines: tuple[str, ...], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check(made(tmp_path / "h", *lines), [], 3, {}, LEASE_SECONDS)


def test_a_holder_that_did_not_end_is_still_one(tmp_path: Path) -> None:
    history = made(tmp_path / "h", "2 begin a 1 k 1", "3 begin a 1 k 2", "2 end a 1 done")
    with pytest.raises(AssertionError, match="two holders"):
        check(history, [], 3, {}, LEASE_SECONDS)


def test_a_job_may_begin_again_when_its_lease_has_ended(tmp_path: Path) -> None:
    history = made(tmp_path / "h", "2 begin a 1 k 1", "3 begin a 1 k 2", "2 end a 1 done")
    assert check(history, [], 3, {}, 1e-9) == (0, 1)
