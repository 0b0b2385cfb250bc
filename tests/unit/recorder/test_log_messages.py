"""What the recorder tells: every event has an id of its own, and the facts that its words name."""

from __future__ import annotations

import re
import string

from sbusd.recorder import log_messages as journal
from sbusd.recorder.log_messages import EVENTS
from sbusd.systemd.journal import Event


def test_ids_and_names_are_unique() -> None:
    assert len(EVENTS) > 10
    assert len({event.id for event in EVENTS}) == len({event.name for event in EVENTS}) == len(EVENTS)
    assert all(re.fullmatch("[0-9a-f]{32}", event.id) for event in EVENTS)


def test_every_event_that_the_code_tells_has_its_facts() -> None:
    """Words with a name that no call gives would be lost at the worst moment."""
    from tests.support.imports import PACKAGE
    from tools.stage import ROOT

    code = "\n".join(path.read_text() for path in (ROOT / PACKAGE / "recorder").glob("*.py"))
    names = {name for name, value in vars(journal).items() if isinstance(value, Event)}
    calls = re.findall(r"\.tell\(\s*([A-Z_]+)(.*?)\)\n", code, re.DOTALL)
    assert {name for name, _ in calls} == names
    for name, arguments in calls:
        wanted = {field for _, field, _, _ in string.Formatter().parse(getattr(journal, name).words) if field}
        assert wanted == set(re.findall(r"(\w+)=", arguments)), name
