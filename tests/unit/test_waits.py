"""Each wait without a time limit is in docs/waits.md, with what ends it, and each look-up of a user or group, with where it runs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.unit.test_house import committed_files
from tools.stage import HOUSES, ROOT

_PAGE = ROOT / "docs" / "waits.md"
_ROW = re.compile(r"^\| `([^`]+)` \| (\d+) \| .+ \|$", re.MULTILINE)

_LOOK_UP = re.compile(r"^\| `([^`]+)` \| ((?:`\w+\.\w+` ?)+) \| (?:start|thread|tool)\b.* \|$", re.MULTILINE)

_RUN = {"run", "call", "check_call", "check_output"}
_START = {"Popen", "create_subprocess_exec", "create_subprocess_shell", "waitpid", "waitid", "wait3", "wait4", "lockf", "flock"}
"""Calls that wait until something else ends, or start a process that something must wait for."""

_WITHOUT_TIME = {"wait", "join", "recv", "accept", "get", "acquire", "communicate", "poll"}
"""Methods that wait without a limit if they are called without arguments."""

_NAMES = {"select", *_RUN, *_START, *_WITHOUT_TIME}

_IN_COROUTINES = re.compile(r"process|child|program", re.IGNORECASE)
"""What a coroutine waits for and another process ends. Other waits of coroutines are those of the event loop."""


def _waits(source: str) -> Iterator[int]:
    """Return the lines of all waits without a time limit."""
    nodes = list(ast.walk(ast.parse(source)))
    awaited = {id(each) for node in nodes for each in _coroutines(node)}
    variables = {
        ast.unparse(node.target)
        for node in nodes
        if "ContextVar" in source and isinstance(node, ast.AnnAssign) and "ContextVar" in ast.unparse(node)
    }
    for node in nodes:
        if isinstance(node, ast.Call) and _name_of(node) in _NAMES and _is_unlimited(node, variables, is_awaited=id(node) in awaited):
            yield node.lineno
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _sockets(node)


def _coroutines(node: ast.AST) -> list[ast.expr]:
    """Return the expressions that *node* passes to the event loop."""
    if isinstance(node, ast.Await):
        return [node.value]
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return []
    is_given = node.func.attr in {"wait_for", "ensure_future", "create_task"} and ast.unparse(node.func.value) == "asyncio"
    return node.args[:1] if is_given else []


def _name_of(call: ast.Call) -> str:
    """Return the name of the function or method that *call* calls."""
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""


def _is_unlimited(call: ast.Call, variables: set[str], *, is_awaited: bool) -> bool:
    """Whether *call* waits, and is given no time."""
    function, name = call.func, _name_of(call)
    owner = ast.unparse(function.value) if isinstance(function, ast.Attribute) else ""
    time = next((each.value for each in call.keywords if each.arg == "timeout"), None)
    has_time = time is not None and not (isinstance(time, ast.Constant) and time.value is None)
    if owner == "subprocess" and name in _RUN:
        return not has_time
    if name in _START:
        return "LOCK_NB" not in ast.unparse(call)
    if name == "select" and owner == "select":
        return len(call.args) < 4
    if name == "communicate":
        return not has_time and len(call.args) < 2
    if name in _WITHOUT_TIME and isinstance(function, ast.Attribute):
        is_bare = not call.args and not has_time
        is_none = name == "poll" and len(call.args) == 1 and isinstance(call.args[0], ast.Constant) and call.args[0].value is None
        is_own = owner in {"select", *variables} or (name == "poll" and "process" in owner)
        return (is_bare or is_none) and not is_own and (not is_awaited or bool(_IN_COROUTINES.search(owner)))
    return False


def _sockets(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[int]:
    """Return the lines of *function* that connect a blocking socket without a time limit."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    names = {node.func.attr for node in calls if isinstance(node.func, ast.Attribute)}
    if names & {"settimeout", "setblocking"} or not names & {"create_connection", "connect", "connect_ex"}:
        return
    text = ast.unparse(function)
    if "NONBLOCK" in text:
        return
    yield from (node.lineno for node in calls if isinstance(node.func, ast.Attribute) and _connects(node.func, text))


def _connects(function: ast.Attribute, text: str) -> bool:
    """Whether *function* is that of a socket of the standard library that connects."""
    owner = ast.unparse(function.value)
    return (function.attr == "create_connection" and owner == "socket") or (
        function.attr in {"connect", "connect_ex"} and "socket.socket(" in text and not owner.endswith(("Bus", "settings"))
    )


def test_each_wait_without_a_limit_has_a_reason() -> None:
    paths = [(path, path.relative_to(ROOT)) for path in committed_files() if path.suffix == ".py"]
    found = {
        str(name): len(lines)
        for path, name in paths
        if name.parts[0] in {*HOUSES, "pyspark_sbus"} and (lines := list(_waits(path.read_text("utf-8"))))
    }
    listed = {name: int(count) for name, count in _ROW.findall(_PAGE.read_text("utf-8"))}
    assert found == listed, "give the wait a limit, or say in docs/waits.md what ends it"


def _look_ups(source: str) -> set[str]:
    """Return the names in *source* that ask for users and groups, called or passed on."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = f"{node.value.id}.{node.attr}"
            if re.fullmatch(r"(?:pwd|grp)\.get\w+|os\.(?:getgrouplist|initgroups)", name):
                found.add(name)
        elif isinstance(node, ast.ImportFrom) and node.module in {"pwd", "grp", "os"}:
            names = {f"{node.module}.{each.name}" for each in node.names}
            found |= {name for name in names if node.module != "os" or name in {"os.getgrouplist", "os.initgroups"}}
    return found


def test_each_look_up_of_a_user_or_group_says_where_it_runs() -> None:
    paths = [(path, path.relative_to(ROOT)) for path in committed_files() if path.suffix == ".py"]
    found = {str(name): names for path, name in paths if name.parts[0] in HOUSES and (names := _look_ups(path.read_text("utf-8")))}
    listed = {name: set(re.findall(r"`([^`]+)`", names)) for name, names in _LOOK_UP.findall(_PAGE.read_text("utf-8"))}
    assert found == listed, "look it up in a thread, and say in docs/waits.md where it runs"


@pytest.mark.parametrize("line", ["pwd.getpwnam(name)", "in_thread(grp.getgrall)", "from pwd import getpwuid", "os.getgrouplist(name, 1)"])
def test_a_look_up_is_found(line: str) -> None:
    assert len(_look_ups(line)) == 1


@pytest.mark.parametrize(
    "line",
    [
        "subprocess.run(command, check=False)",
        "process.communicate(data)",
        "process.communicate(timeout=None)",
        "process.wait()",
        "thread.join()",
        "queue.get()",
        "poll.poll(None)",
        "select.select([fd], [], [])",
        "os.waitpid(pid, 0)",
        "fcntl.flock(fd, fcntl.LOCK_EX)",
        "async def f():\n    await process.wait()",
        "def f():\n    s = socket.socket(socket.AF_UNIX)\n    s.connect(path)",
    ],
)
def test_a_wait_is_found(line: str) -> None:
    assert list(_waits(line))


@pytest.mark.parametrize(
    "line",
    [
        "subprocess.run(command, timeout=SECONDS)",
        "process.communicate(data, timeout=SECONDS)",
        "process.wait(SECONDS)",
        "process.poll()",
        "', '.join(words)",
        "found.get(name)",
        "fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "async def f():\n    await changed.wait()",
        "def f():\n    s = socket.socket(socket.AF_UNIX)\n    s.settimeout(SECONDS)\n    s.connect(path)",
    ],
)
def test_what_has_a_limit_is_not(line: str) -> None:
    assert not list(_waits(line))


def test_scripts_of_packages_limit_what_they_ask_the_managers_of_users() -> None:
    """The manager of a user can be stopped by its user; a package could then not be removed."""
    scripts = [path for path in (ROOT / "packaging" / "debian").iterdir() if path.suffix in {".preinst", ".postinst", ".prerm", ".postrm"}]
    lines = [
        line.strip()
        for path in scripts
        for line in path.read_text("utf-8").splitlines()
        if re.search(r"(?:invoke|systemctl).*--user", line)
    ]
    assert lines
    assert [line for line in lines if not re.match(r"timeout \d+ ", line)] == []
