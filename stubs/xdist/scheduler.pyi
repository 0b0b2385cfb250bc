"""What is used of pytest-xdist's schedulers."""

from __future__ import annotations

import pytest

class LoadGroupScheduling:
    def __init__(self, config: pytest.Config, log: object = None) -> None: ...
    def _split_scope(self, nodeid: str) -> str: ...
