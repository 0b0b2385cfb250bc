"""Every call of the routing thread that can wait is in docs/routing-thread.md, with what bounds it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tools.imports import included_in
from tools.stage import ROOT

PAGE = ROOT / "docs" / "routing-thread.md"

START = "sbusd.daemon.main"

MODULES = {"fcntl", "grp", "mmap", "os", "pwd", "resource", "select", "shutil", "signal", "socket", "subprocess", "time"}
"""Modules whose functions are system calls, or make some."""

PURE = {
    "os.environ.get", "os.fsdecode", "os.fsencode", "os.path.basename", "os.path.dirname", "os.path.join", "os.strerror",
    "os.WEXITSTATUS", "os.WIFEXITED", "time.monotonic", "time.monotonic_ns", "time.time", "time.time_ns",
}  # fmt: skip
"""Functions of them that ask the kernel for nothing, or read a clock."""

_STRUCTS = {"epoll_event", "gid_t", "htole32", "iovec", "le32toh", "mmsghdr", "msghdr", "peer_credentials", "pollfd", "rusage"} | {
    *("set_errno", "snprintf", "socklen_t", "struct_stat", "timespec"),
}
"""Names from C that are structs, conversions or texts."""

METHODS = {"chmod", "exists", "is_file", "lstat", "open", "read_bytes", "read_text", "resolve", "stat", "unlink", "write_text"}
"""Methods of paths that ask the file system."""

_IMPORT = re.compile(r"^\s*(?:from (sbus[\w.]*) c?import ([^#\n]*)|import (sbus[\w.]*))", re.MULTILINE)
_CALL = re.compile(rf"\b((?:{'|'.join(sorted(MODULES))})(?:\.\w+)+)\(")
_FROM_C = re.compile(r"^from (?:sbusd\.dataplane\.libc|posix\.[\w.]+|libc\.stdio) cimport (\([^)]*\)|[^\n]*)", re.MULTILINE)
_ROW = re.compile(r"^\| `(sbus\w*/[\w./]+)` \| (.+?) \| .+ \|$", re.MULTILINE)


def _source(module: str) -> Path | None:
    """Return the source of a module of the package, None if there is none."""
    stem = ROOT / module.replace(".", "/")
    candidates = (stem.with_suffix(".py"), stem.with_suffix(".pyx"), stem / "__init__.py")
    return next((path for path in candidates if path.exists()), None)


def _imported(path: Path) -> set[str]:
    """Return the modules of the package that a source may import, wherever it does."""
    found = set()
    for match in _IMPORT.finditer(path.read_text("utf-8")):
        parent = match[1] or match[3]
        found.add(parent)
        found |= {f"{parent}.{name.strip().partition(' ')[0]}" for name in (match[2] or "").strip("()").split(",")}
    return found


def daemon_sources() -> set[Path]:
    """Return the sources of all modules that the daemon can load."""
    seen: set[Path] = set()
    pending = {START}
    while pending:
        path = _source(pending.pop())
        if path is not None and path not in seen:
            whole = {path, *(path.parent / name for name in included_in(path))}
            seen |= whole
            pending |= set().union(*(_imported(part) for part in whole))
    return seen


def calls_in(path: Path) -> set[str]:
    """Return the calls in a source that can wait."""
    text = path.read_text("utf-8")
    if path.suffix in {".pyx", ".pxi"}:
        from_c = ",".join(match[1].strip("()") for match in _FROM_C.finditer(text))
        names = {name.strip() for name in from_c.replace("\n", " ").split(",")}
        from_python = set(_CALL.findall(text)) - PURE
        return {name for name in names - _STRUCTS if re.fullmatch(r"[a-z]\w*", name)} | from_python
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name == "open" or name.partition(".")[0] in MODULES:
                found.add(name)
            elif isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
                found.add(f"Path.{node.func.attr}")
    return found - PURE


def rows() -> dict[str, set[str]]:
    """Return the calls in the table, by source."""
    return {source: set(re.findall(r"`([^`]+)`", calls)) for source, calls in _ROW.findall(PAGE.read_text("utf-8"))}


def test_each_call_that_can_wait_is_in_the_table_with_its_bound() -> None:
    found = {str(path.relative_to(ROOT)): calls for path in daemon_sources() if (calls := calls_in(path))}
    assert {"grp.getgrnam", "pwd.getpwnam"} <= found["sbus_programs/config/users.py"]
    assert {"epoll_wait", "epoll_ctl"} <= found["sbusd/dataplane/turn/turn.pxi"]
    assert rows() == found


def test_only_threads_and_the_start_ask_for_users_and_groups() -> None:
    asking = {source for source, calls in rows().items() if any(call.partition(".")[0] in {"grp", "pwd"} for call in calls)}
    assert asking == {"sbus_programs/config/users.py", "sbus_programs/systemd/service_user.py"}
    resolving = {"getaddrinfo", "gethostbyname", "getfqdn", "getgrouplist"}
    assert {source for source, calls in rows().items() if {call.rpartition(".")[2] for call in calls} & resolving} == {
        "sbus_programs/systemd/service_user.py"  # only for --check-config
    }
