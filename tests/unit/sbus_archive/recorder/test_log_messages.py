"""Each call that logs a message of the recorder gives the facts of its template."""

from __future__ import annotations

import re
import string

from sbus_archive.recorder import log_messages as journal
from sbus_programs.systemd.log_records import LogMessage


def test_each_call_gives_all_facts() -> None:
    """Otherwise a record would lack a fact when it is needed."""
    from tools.stage import ROOT

    code = "\n".join(path.read_text() for path in (ROOT / "sbus_archive" / "recorder").glob("*.py"))
    names = {name for name, value in vars(journal).items() if isinstance(value, LogMessage)}
    calls = re.findall(r"\.record\(\s*([A-Z_]+)(.*?)\)\n", code, re.DOTALL)
    assert {name for name, _ in calls} == names
    for name, arguments in calls:
        wanted = {field for _, field, _, _ in string.Formatter().parse(getattr(journal, name).template) if field}
        assert wanted == set(re.findall(r"(\w+)=", arguments)), name
