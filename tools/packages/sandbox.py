"""A command in a root that it cannot change: read-only, with a /tmp of its own, no network, and one folder to work in."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tools.packages.errors import PackagingError

WORK = Path("/srv/work")
"""Where the command finds the folder it works in. The same for every build, so that equal sources give equal packages."""

# The mounts are in a namespace of their own, and go with it.
_ENTER = """
set -eu
root=$1 folder=$2
shift 2
mount --bind "$root" "$root"
mount -t tmpfs -o mode=0755 work "$root/srv"
mkdir "$root/srv/work"
mount --bind "$folder" "$root/srv/work"
mount -o remount,ro "$root/srv"
mount -o remount,bind,ro "$root"
mount -t tmpfs -o mode=1777,nosuid,nodev tmp "$root/tmp"
mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
exec chroot "$root" /usr/bin/env --ignore-environment --chdir=/srv/work PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LANG=C.UTF-8 "$@"
"""

_NAMESPACES = ("--mount", "--pid", "--fork", "--kill-child", "--net", "--ipc")

_LAST_LINES = 3
"""How much of a command's complaint is shown; all of it is in the log."""


def run_in(root: Path, folder: Path, command: list[str], *, log: Path, check: bool = True) -> int:
    """Run *command* in *root*, in *folder*, the only writable one; its output is appended to *log*. Return its status.

    Raises:
        PackagingError: the status is not 0, and *check* asks for that.
    """
    with log.open("a") as output:
        print("$", *command, file=output, flush=True)
        entered = ["unshare", *_NAMESPACES, "sh", "-c", _ENTER, "room", str(root), str(folder), *command]
        status = subprocess.run(entered, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
    if check and status != 0:
        said = " / ".join(log.read_text(errors="replace").strip().splitlines()[-_LAST_LINES:])
        raise PackagingError(f"{' '.join(command)} ended with status {status}: {said} (all of it: {log})")
    return status
