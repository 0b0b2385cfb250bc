"""The diagnosis of ``sbusctl doctor``: whether the bus works, and the finding that is the cause of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sbusd.ctl.checks import CheckResult, Finding
from sbusd.ctl.formatting import human_plural

_CAUSES = ("address", "configuration", "faults", "listener", "sbus.service", "sbus.socket", "socket", "connection", "protocol")
"""The checks whose failure stops the bus, causes before consequences: a faulty configuration makes the service fail, then the socket."""

_PROOFS = ("connection", "protocol")
"""The checks that succeed if the bus works."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The diagnosis: in ``cause`` the finding to act on first, None if there is nothing to do."""

    works: bool
    cause: Finding | None
    others: int
    """Further findings that failed or warn."""

    @property
    def text(self) -> str:
        """The diagnosis in one line."""
        state = "the bus works" if self.works else "the bus does not work"
        if self.cause is None:
            return state
        more = f" ({human_plural(self.others, 'further problem')} below)" if self.others else ""
        joint = ", but" if self.works else ":"
        return f"{state}{joint} {self.cause.check}: {self.cause.reason}{more}"


def judge(findings: Sequence[Finding]) -> Diagnosis:
    """Return the diagnosis for *findings*."""
    succeeded = {each.check for each in findings if each.result is CheckResult.OK}
    works = succeeded.issuperset(_PROOFS)
    problems = [each for each in findings if each.result in (CheckResult.FAIL, CheckResult.WARN)]
    problems.sort(key=_rank)
    return Diagnosis(works, problems[0] if problems else None, max(0, len(problems) - 1))


def _rank(finding: Finding) -> tuple[bool, int]:
    """Return the order of *finding* among problems: failures first, then causes."""
    order = _CAUSES.index(finding.check) if finding.check in _CAUSES else len(_CAUSES)
    return finding.result is not CheckResult.FAIL, order
