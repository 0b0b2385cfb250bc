"""make deb and make rpm: ``python -m tools.packages deb|rpm`` builds this tree's packages into dist/ and has them judged.

Needs root, mmdebstrap(1), and Python's standard library alone.
"""

from __future__ import annotations

import shutil
import sys

from tools.packages import debian, rpm
from tools.packages.errors import PackagingError
from tools.packages.progress import BuildProgress
from tools.stage import ROOT

DIST = ROOT / "dist"

KINDS = {
    "deb": (debian.debian_packages, debian.lint, "lintian", debian.CACHED_LOG),
    "rpm": (rpm.rpm_packages, rpm.lint, "rpmlint", rpm.CACHED_LOG),
}


def main(arguments: list[str]) -> int:
    """Build packages of the one kind in *arguments*; return the process's status."""
    if len(arguments) != 1 or arguments[0] not in KINDS:
        print(f"usage: python -m tools.packages {'|'.join(KINDS)}", file=sys.stderr)
        return 2
    kind = arguments[0]
    try:
        return _build(kind)
    except PackagingError as error:
        print(f"{kind}: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print(f"{kind}: interrupted", file=sys.stderr)
    return 1


def _build(kind: str) -> int:
    """Build, copy to dist/, and judge packages of *kind*; return the status."""
    build, lint, judge, log = KINDS[kind]
    with BuildProgress(kind, log):
        packages = build()
    DIST.mkdir(exist_ok=True)
    for path in sorted(path for path in packages.iterdir() if path.is_file()):
        shutil.copyfile(path, DIST / path.name)
        print(f"{kind}: {DIST.name}/{path.name}")
    opinion = DIST / f"{judge}.log"
    opinion.unlink(missing_ok=True)
    print(f"{kind}: checking the packages with {judge}", file=sys.stderr, flush=True)
    if lint(packages, opinion) == 0:
        return 0
    print(opinion.read_text(), end="", file=sys.stderr)
    print(f"{kind}: {judge} finds what has to change: see above, or {DIST.name}/{opinion.name}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
