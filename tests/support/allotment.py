"""How tests are distributed to the workers of pytest-xdist: what stays together, and what starts first.

All tests of a file run in one worker, so that its fixtures of scope "module" are made once. Tests that use one of the fixtures in
:data:`GROUPS` run in one worker, whatever their file. Everything else that tests share is safe to share: names and addresses contain a
process id, and caches are locked.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

import pytest
from xdist.scheduler import LoadGroupScheduling

GROUPS: Mapping[str, str] = {"spark": "spark"}
"""Fixtures that are too expensive for more than one worker, in any file, and the names of their groups: Spark keeps its Java machine for
the rest of the process, so that only the first session of a worker takes long to start."""

FOLDERS = ("system", "faults", "attacks", "fuzz", "soak", "integration", "sanitize", "property", "unit")
"""Folders of tests, those whose tests take longest first: a long file that starts last would keep one worker busy when all others are
done. A folder that is not here comes before all of them."""


class ByFileOrGroup(LoadGroupScheduling):
    """Distributes groups, and the files of tests that are in no group."""

    def _split_scope(self, nodeid: str) -> str:
        """Return the unit of work that a test belongs to."""
        scope = super()._split_scope(nodeid)
        return nodeid.partition("::")[0] if scope == nodeid else scope


def arrange(items: list[pytest.Item]) -> None:
    """Put each of *items* into the group of its fixtures, and all into the order in which they are to start."""
    for item in items:
        for fixture in GROUPS.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group(GROUPS[fixture]))
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    """Return the place of the folder of *item*."""
    parts = PurePosixPath(item.nodeid).parts
    folder = parts[1] if len(parts) > 1 else ""
    return FOLDERS.index(folder) if folder in FOLDERS else -1
