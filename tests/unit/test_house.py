"""The rules of the house that a machine can check; each of them is shown to fail on a made-up file."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

import pytest

from tools.stage import HOUSES, ROOT, house_files

CODE = {".py", ".pyi", ".pyx", ".pxi", ".pxd", ".c", ".h"}

MAX_LINES = 500

PAGE_COLUMNS = 120

WIDE_TABLES = {"clocks.md", "routing-thread.md", "tables.md", "waits.md"}
"""The pages with a list of everything of a kind, or a comparison, whose rows may be long."""

_DRAWERS = {"util", "utils", "helper", "helpers", "common", "misc", "shared", "tools", "stuff", "base", "core"}

_STANDARD = {"bin", "boot", "dev", "etc", "home", "lib", "mnt", "opt", "proc", "root", "run", "srv", "sys", "tmp", "usr", "var"}
"""The top directories of file-hierarchy(7) and of the Filesystem Hierarchy Standard."""

TOPICS = {
    "sbus_archive/storage/test_credentials.py",
    "bench/peers/test_peer_figures.py",  # figures.py is tested twice: for the bus, and for its peers
    "sbusd/broker/test_broker_quotas.py",
    "sbusd/broker/test_held_clients.py",
    "sbus/asyncio/test_batches.py",
    "sbus/rpc/test_cancelled_calls.py",
    "sbus/rpc/test_shared_calls.py",
    "sbus/rpc/test_streams.py",
    "sbus/sync/test_batches.py",
    "sbus/test_exports.py",
    "test_clocks.py",
    "test_waits.py",
    "sbus_programs/config/test_drop_ins.py",
    "sbus_programs/config/test_hostile_values.py",
    "sbusctl/test_hostile_values.py",
    "sbusctl/test_option_effects.py",
    "sbusd/dataplane/test_rooms.py",
    "sbus_services/metrics/test_prometheus_files.py",
    "sbus_archive/recorder/test_user_shares.py",
    "support/test_workers.py",
    "test_catalog.py",
    "test_house.py",
    "test_program_options.py",
    "test_layering.py",
    "test_manual_figures.py",
    "test_manual_names.py",
    "test_manual_options.py",
    "test_manual_performance.py",
    "test_manual_protocol.py",
    "test_manual_rendering.py",
    "test_manual_rpc.py",
    "test_manual_settings.py",
    "test_packaged_rules.py",
    "test_plain_language.py",
    "test_routing_thread.py",
    "test_units.py",
    "tools/packages/test_command.py",
    "tools/packages/test_file_lists.py",
    "tools/packages/test_maintainer_scripts.py",
    "test_late_imports.py",
    "tools/test_ci.py",
}
"""Unit tests of a topic instead of one module, relative to tests/unit. Every other unit test has the path of its module."""

_LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")

_NAMED_PATH = re.compile(r"`((?:docs|etc|examples|man|packaging|sbus\w*|tests|tools|units)/[\w./-]*)`")

_CALLED_BY_OTHERS = re.compile(
    r"_.*|\w+_(?:command|action)"  # private, or found by its name: sbusctl/group.py
    r"|collect_usage_pieces|format_options|seekable|streamReader|streamWriter|log_exception"  # called by click, io, Spark, aiohttp
    r"|parse_direct"  # what the tests compare the data plane with
)
"""Functions that nothing in the product needs to name."""

_CODE_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)

_BUILT = re.compile(r"(^|/)(\.\w+_cache|\.venv|\.hypothesis|__pycache__|build|dist)/|egg-info|\.so$|^sbus\w*/.*\.(c|cpp)$")
"""Files that are ignored in a tree without git."""

MANUAL = {
    "sbus.7",
    "sbus.h.3",
    "sbus-python.3",
    "sbus-protocol.7",
    "sbus-rpc.7",
    "sbus-spark.7",
    "sbus-performance.7",
    "sbus-record.5",
    "sbusd.toml.5",
    "blob.toml.5",
}
"""The manual pages that do not describe a program; each program of pyproject.toml has a page."""


def committed_files() -> list[Path]:
    """Return the files that git would commit, or all in a tree without git; neither those ignored nor those deleted."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0")
        return [ROOT / name for name in sorted(set(names)) if name and (ROOT / name).is_file()]
    return [path for path in ROOT.rglob("*") if path.is_file() and not _BUILT.search(str(path.relative_to(ROOT)))]


def _too_long(path: Path) -> Iterable[str]:
    """Yield a line for a file with more than MAX_LINES lines."""
    count = len(path.read_text().splitlines())
    if count > MAX_LINES:
        yield f"has {count} lines, but the maximum is {MAX_LINES}: split it"


def _drawer(path: Path) -> Iterable[str]:
    """Yield a line for a module that is named for nothing in particular."""
    if path.stem in _DRAWERS:
        yield "is a drawer: name it by what it holds"


def _unmirrored(tests: Iterable[str], sources: set[str]) -> list[str]:
    """Return a line for each unit test of no module, and for each entry of TOPICS that is wrong; paths are relative to the root."""
    found = {test.removeprefix("tests/unit/") for test in tests}
    topics = {test for test in found if not any(module in sources for module in _modules_of(test))}
    wrong = [f"tests/unit/{test}: has no module of that name; move it, or add it to TOPICS" for test in sorted(topics - TOPICS)]
    return wrong + [f"tests/unit/{test}: is in TOPICS, but is gone or has a module; remove it there" for test in sorted(TOPICS - topics)]


def _modules_of(test: str) -> list[str]:
    """Return the paths at which the module of the unit test *test* can be: in the product, in the tests, or in the tools."""
    path = PurePosixPath(test)
    module = path.with_name(path.stem.removeprefix("test_"))
    return [f"{top}{module}{end}" for top in ("", "tests/") for end in ("", ".py", ".pyx", ".pxi", "/__init__.py")]


def _broken_links(path: Path) -> Iterable[str]:
    """Yield a line for each relative link, and each path in backquotes, of a Markdown file that leads nowhere."""
    text = _CODE_BLOCK.sub("", path.read_text())
    for target in _LINK.findall(text):
        if not re.match(r"\w+:|#", target) and not (path.parent / target.partition("#")[0]).exists():
            yield f"links to {target}, which does not exist"
    for named in _NAMED_PATH.findall(text):
        if not (ROOT / named).exists():
            yield f"names {named}, which does not exist"


def _too_wide(path: Path) -> Iterable[str]:
    """Yield a line for each line of a page that has more columns than a window of a reader."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if len(line) > PAGE_COLUMNS and not (line.startswith("|") and path.name in WIDE_TABLES):
            yield f"line {number} has {len(line)} columns, but the maximum is {PAGE_COLUMNS}"


def _undocumented(path: Path) -> Iterable[str]:
    """Yield a line for each public module, class, function and method that says nothing of itself."""
    tree = ast.parse(path.read_text(), str(path))
    if not ast.get_docstring(tree) and tree.body:
        yield "the module has no docstring"
    yield from _undocumented_in(tree)


def _undocumented_in(parent: ast.Module | ast.ClassDef) -> Iterable[str]:
    """Yield a line for each public name defined in *parent* that has no docstring."""
    for node in parent.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            overload = not isinstance(node, ast.ClassDef) and any("overload" in ast.unparse(each) for each in node.decorator_list)
            if not overload and not (ast.get_docstring(node) or "").strip():
                yield f"line {node.lineno}: {node.name} has no docstring"
            if isinstance(node, ast.ClassDef):
                yield from _undocumented_in(node)


def _place_of(tree: Path) -> str:
    """Return the path that only files of the machine of *tree* name: its top directory, or all of it if that is a standard one."""
    return f"{tree}/" if tree.parts[1] in _STANDARD else f"/{tree.parts[1]}/"


def _machine_paths(path: Path, tree: Path = ROOT) -> Iterable[str]:
    """Yield a line for each place that names a file by its URL, or a path on the machine on which *tree* is."""
    own = re.compile(rf"(?<![\w.}}-]){re.escape(_place_of(tree))}|file:/{{3}}(?!dev/null)")
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        if match := own.search(line):
            yield f"line {number}: names {match[0]}, which is of one machine"


Check = Callable[[Path], Iterable[str]]


def _complaints(check: Check, paths: Iterable[Path]) -> list[str]:
    """Return every complaint of *check*, with its file."""
    return [f"{path.relative_to(ROOT)}: {complaint}" for path in paths for complaint in check(path)]


def _code(*parts: str) -> list[Path]:
    """Return the committed source files under any of *parts*."""
    return [path for path in committed_files() if path.suffix in CODE and path.relative_to(ROOT).parts[0] in parts]


def test_no_file_is_too_long() -> None:
    assert not _complaints(_too_long, _code(*HOUSES, "clients", "tests", "tools", "stubs", "examples"))


def test_unit_tests_mirror_the_modules() -> None:
    names = {str(path.relative_to(ROOT)) for path in committed_files()}
    assert not _unmirrored((name for name in names if re.match(r"tests/unit/(.*/)?test_\w+\.py$", name)), names)


def test_a_test_without_a_module_and_a_stale_topic_are_found() -> None:
    tests = {f"tests/unit/{topic}" for topic in TOPICS} | {"tests/unit/sbus/test_inbox.py"}
    assert _unmirrored(tests | {"tests/unit/sbus/test_new.py"}, {"sbus/inbox.py"}) == [
        "tests/unit/sbus/test_new.py: has no module of that name; move it, or add it to TOPICS"
    ]
    (stale,) = _unmirrored(tests, {"sbus/inbox.py", "units.py"})
    assert stale == "tests/unit/test_units.py: is in TOPICS, but is gone or has a module; remove it there"


def test_every_link_leads_somewhere() -> None:
    pages = [path for path in committed_files() if path.suffix == ".md"]
    assert len(pages) > 3
    assert not _complaints(_broken_links, pages)


def test_pages_for_contributors_are_not_wide() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "tests" / "README.md", *(ROOT / "docs").glob("*.md"), *house_files(".md")]
    assert not _complaints(_too_wide, pages)


def test_no_module_is_a_drawer() -> None:
    assert not _complaints(_drawer, _code(*HOUSES, "tests", "tools"))


def test_every_public_name_is_documented() -> None:
    paths = [path for path in _code(*HOUSES, "tools") if path.suffix == ".py"]
    assert len(paths) > 20
    assert not _complaints(_undocumented, paths)


def _only_for_tests(paths: Iterable[Path]) -> list[str]:
    """Return the public functions in *paths*, the source of the product, that nothing else there names."""
    texts = {path: path.read_text() for path in paths}
    words = Counter(word for text in texts.values() for word in re.findall(r"\w+", text))
    return [
        f"{path}:{node.lineno}: {node.name}"
        for path, text in texts.items()
        if path.suffix == ".py"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and words[node.name] == 1 and not _CALLED_BY_OTHERS.fullmatch(node.name)
        if all(isinstance(each, ast.Name) and each.id == "property" for each in node.decorator_list)
    ]


def test_no_function_is_only_for_tests() -> None:
    product = [path for path in _code(*HOUSES) if path.suffix in {".py", ".pyx", ".pxi", ".pxd"}]
    assert _only_for_tests(product) == []


def test_a_function_that_is_only_for_tests_is_found(tmp_path: Path) -> None:
    source = tmp_path / "a.py"
    source.write_text("def used(): return unused\n@app.command\ndef run(): used()\nclass A:\n    @property\n    def lonely(self): pass\n")
    assert _only_for_tests([source]) == [f"{source}:6: lonely"]


def test_no_file_names_the_machine_it_was_written_on() -> None:
    assert not _complaints(_machine_paths, committed_files())


@pytest.mark.parametrize(("tree", "place"), [("/data/bus", "/data/"), ("/home/alice/bus", "/home/alice/bus/")])
def test_the_paths_of_a_machine_are_those_below_the_place_of_the_tree(tmp_path: Path, tree: str, place: str) -> None:
    (tmp_path / "page.md").write_text(f"{place}x\nmade{place}x\n/home/bob/x\n/usr/x\n")
    assert list(_machine_paths(tmp_path / "page.md", Path(tree))) == [f"line 1: names {place}, which is of one machine"]


def test_every_program_and_format_has_a_manual_page() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pages = {path.name for path in (ROOT / "man").iterdir()}
    for program in project["project"]["scripts"]:
        assert pages & {f"{program}.1", f"{program}.8"}, program
    assert pages >= MANUAL


@pytest.mark.parametrize(
    ("check", "name", "text"),
    [
        (_too_long, "long.py", "x = 1\n" * 501),
        (_too_long, "excused.py", "# Longer than 500 lines, for a reason.\n" + "x = 1\n" * 500),
        (_broken_links, "page.md", "See [there](nowhere.md#part) and [here](page.md).\n"),
        (_broken_links, "page.md", "See `sbusd/nowhere.py` and `sbusd/__init__.py`.\n"),
        (_too_wide, "page.md", "| " + "x" * 120 + "\n"),
        (_too_wide, "waits.md", "x" * 121 + "\n"),
        (_drawer, "utils.py", ""),
        (_undocumented, "bare.py", "X = 1\n"),
        (_undocumented, "function.py", '"""Words."""\ndef run() -> None: ...\n'),
        (_undocumented, "method.py", '"""Words."""\nclass A:\n    """Words."""\n    async def run(self) -> None: ...\n'),
        (_machine_paths, "path.md", f"see {ROOT}/there\n"),
        (_machine_paths, "url.md", f"see {Path('/etc/hosts').as_uri()}\n"),
    ],
)
def test_a_broken_rule_is_found(tmp_path: Path, check: Check, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert len(list(check(tmp_path / name))) == 1


@pytest.mark.parametrize(
    ("check", "name", "text"),
    [
        (_too_long, "full.py", "x = 1\n" * 500),
        (_broken_links, "page.md", "[a](page.md#part), [b](https://example.org/), [c](#part)\n```\n[d](nowhere)\n```\n"),
        (_too_wide, "waits.md", "| " + "x" * 120 + "\n" + "x" * 120),
        (_undocumented, "private.py", '"""Words."""\ndef _run() -> None: ...\n'),
        (_machine_paths, "path.md", "a bus at /run/sbus.socket and a network\n"),
    ],
)
def test_a_kept_rule_is_not_found(tmp_path: Path, check: Check, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert not list(check(tmp_path / name))
