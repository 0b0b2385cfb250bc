"""The manual and the samples have each key of the configuration, in the order of the code, with its default and its range."""

from __future__ import annotations

import grp
import pwd
import re
import tomllib
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from sbus_programs.config import blob, feed_dbus, hosts, link, live, metrics, recorder, relay, rules, settings, ship, store, trigger
from sbus_programs.config.documents import ORIGIN, read_settings, settings_of
from sbus_programs.config.files import ConfigError
from sbus_programs.config.quantities import NO_BOUND, Count, Duration, Size, show_duration, show_size
from tests.support.manual import Item, examples, lists, source
from tools.stage import ROOT

PAGES: dict[str, tuple[type[Any], ...]] = {
    "blob.toml.5": (blob.BlobSettings, blob.BlobQuotas, blob.BlobRights),
    "feed-dbus.toml.5": (feed_dbus.DBusFeedSettings, feed_dbus.SignalRule),
    "link.toml.5": (link.LinkSettings, link.LinkPeerSettings, link.ExportSettings, link.ImportSettings),
    "sbus-live.8": (live.LiveSettings, live.Threshold, live.Anomaly),
    "sbus-metrics.8": (metrics.MetricsSettings,),
    "sbus-recorder.8": (recorder.RecorderSettings,),
    "sbus-relay.8": (relay.RelaySettings,),
    "sbus-ship.8": (ship.ShipSettings,),
    "sbusd.toml.5": (
        *(settings.DaemonSettings, settings.LimitSettings, settings.QuotaSettings, settings.LogSettings),
        *(rules.RightsSettings, rules.PolicyRule),
    ),
    "store.toml.5": (store.StoreSettings, store.StreamSettings, store.QueueSettings, store.StoreLimits),
    "trigger.toml.5": (trigger.TriggerSettings, trigger.TriggerRule),
}
"""The pages, and the tables whose keys are in a list there."""

OWN_SECTION = {"limits", "quotas", "log", "rights", "stream", "queue", "on", "signal"}
"""Tables that are described outside the list of the other keys."""

TABLES = [(page, kind) for page, kinds in PAGES.items() for kind in kinds]


IN_SENTENCES = [
    ("link.toml.5", hosts.TlsSettings),
    ("sbus-relay.8", hosts.TlsSettings),
    ("sbus-relay.8", relay.PeerSettings),
    ("sbus-recorder.8", recorder.PayloadRule),
]
"""Tables whose keys are described in the text about another key."""

SAMPLES = {
    "blob.toml": blob.BlobSettings,
    "link.toml": link.LinkSettings,
    "metrics.toml": metrics.MetricsSettings,
    "relay.toml": relay.RelaySettings,
    "sbusd.toml": settings.DaemonSettings,
}
"""The samples that show every key with its default, in comments, and above them perhaps an example, which is indented."""

EXAMPLES: dict[str, tuple[type[Any], ...]] = {
    **{page: kinds[:1] for page, kinds in PAGES.items()},
    "sbus-link.8": (link.LinkSettings,),
    "sbus-live.8": (live.LiveSettings, store.StoreSettings),
    "sbus-metrics.8": (metrics.MetricsSettings, settings.DaemonSettings),
    "sbus-recorder.8": (recorder.RecorderSettings,),
    "sbus-relay.8": (relay.RelaySettings, settings.DaemonSettings),
    "sbus-ship.8": (ship.ShipSettings, recorder.RecorderSettings),
    "sbus-trigger.8": (trigger.TriggerSettings,),
}
"""The pages with examples of configurations, and what reads these."""

_CERTIFICATES = 'tls = { certificate = "/c", key = "/k", authority = "/a" }\n'

_SETTINGS = re.compile(r"^(?:\[\[?[a-z_.]+\]\]?$|[a-z_]+ = [\"'{\[\dtf])", re.MULTILINE)
"""A line of an example in TOML."""


def _keys(kind: type[Any]) -> dict[str, Field[Any]]:
    """Return the fields of a table by their keys."""
    hints = get_type_hints(kind, include_extras=True)
    found = {}
    for each in fields(kind):
        aliases = [extra.alias for extra in getattr(hints[each.name], "__metadata__", ()) if isinstance(extra, FieldInfo)]
        found[str(next(iter(aliases), each.name))] = each
    return {key: each for key, each in found.items() if key != ORIGIN}


def _items(page: str, kind: type[Any]) -> dict[str, Item]:
    """Return the items of the list that is about *kind*: the one that has most of its keys."""
    found = [{name.strip("[]"): item for item in each for name in item.names} for each in lists(source(page))]
    return max(found, key=lambda each: len(each.keys() & _keys(kind).keys()))


def _type(kind: type[Any], each: Field[Any]) -> Any:
    """Return the annotation of a field, without an alias."""
    hint = get_type_hints(kind, include_extras=True)[each.name]
    return hint.__origin__ if any(isinstance(extra, FieldInfo) for extra in getattr(hint, "__metadata__", ())) else hint


def _default(each: Field[Any]) -> object:
    """Return the default of a field, or MISSING."""
    return each.default_factory() if callable(each.default_factory) else each.default


def _ranges(annotation: Any) -> list[str]:
    """Return the ranges of the numbers that *annotation* has, as the manual writes them."""
    found = []
    for extra in getattr(annotation, "__metadata__", ()):
        match extra:
            case Count():
                found += [f"{extra.least} to {extra.most}"] * (extra.most < NO_BOUND)
            case Size():
                found.append(f"{show_size(extra.least)} to {show_size(extra.most)}")
            case Duration():
                found.append(f"{show_duration(extra.least) if extra.least else '0s'} to {show_duration(extra.most)}")
    return found


@pytest.mark.parametrize(("page", "kind"), TABLES, ids=lambda each: getattr(each, "__name__", None))
def test_each_key_is_documented_in_its_order(page: str, kind: type[Any]) -> None:
    items = _items(page, kind)
    assert list(items) == [key for key in _keys(kind) if key in items or key not in OWN_SECTION]


@pytest.mark.parametrize(("page", "kind"), TABLES, ids=lambda each: getattr(each, "__name__", None))
def test_each_default_is_documented(page: str, kind: type[Any]) -> None:
    for key, item in _items(page, kind).items():
        each = _keys(kind)[key]
        shown = item.default and tomllib.loads(f"x = {item.default}")["x"]
        if shown or _default(each) not in (MISSING, None, "", ()):
            assert TypeAdapter(_type(kind, each)).validate_python(shown) == _default(each), key


@pytest.mark.parametrize(("page", "kind"), TABLES, ids=lambda each: getattr(each, "__name__", None))
def test_each_range_is_documented(page: str, kind: type[Any]) -> None:
    hints = get_type_hints(kind, include_extras=True)
    wrong = []
    for key, item in _items(page, kind).items():
        hint = hints[_keys(kind)[key].name]
        inner = get_type_hints(hint, include_extras=True).values() if is_dataclass(hint) and item.default not in (None, "{}") else ()
        wrong += [f"{key}: {each}" for part in (hint, *inner) for each in _ranges(part) if each not in item.text]
    assert wrong == []


@pytest.mark.parametrize(("page", "kind"), IN_SENTENCES, ids=lambda each: getattr(each, "__name__", None))
def test_each_key_is_documented_in_a_sentence(page: str, kind: type[Any]) -> None:
    assert [key for key in _keys(kind) if not re.search(rf"^\.Cm .*\b{key}\b", source(page), re.MULTILINE)] == []


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each user and each group exist."""
    monkeypatch.setattr("pwd.getpwnam", lambda _name: pwd.getpwuid(0))
    monkeypatch.setattr("grp.getgrnam", lambda _name: grp.getgrgid(0))


def _assert_complete(table: dict[str, Any], kind: type[Any]) -> None:
    """Assert that *table* has each key of *kind*, in its order, and so have the tables in it."""
    assert list(table) == list(_keys(kind))
    for key, value in table.items():
        inner = _type(kind, _keys(kind)[key])
        if value and is_dataclass(inner):
            _assert_complete(value, inner)  # type: ignore[arg-type]  # it is a class


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.usefixtures("users")
def test_a_sample_shows_every_key_with_its_default(name: str) -> None:
    path, kind = ROOT / "etc" / name, SAMPLES[name]
    shown = tomllib.loads(re.sub(r"^# (\w+ = )", r"\1", path.read_text(), flags=re.MULTILINE))
    assert settings_of([(path, shown)], kind) == read_settings([path], kind) == kind()
    _assert_complete(shown, kind)
    example = tomllib.loads("\n".join(re.findall(r"^#     (.*)$", path.read_text(), re.MULTILINE)))
    assert settings_of([(path, example)], kind) != kind() or name == "sbusd.toml"


@pytest.mark.parametrize(
    ("name", "kind"),
    [("feed-dbus.toml", feed_dbus.DBusFeedSettings), ("store.toml", store.StoreSettings), ("trigger.toml", trigger.TriggerSettings)],
)
@pytest.mark.usefixtures("users")
def test_a_sample_without_defaults_has_an_example(name: str, kind: type[Any]) -> None:
    path = ROOT / "etc" / name
    example = re.sub(r"^#(?=[\[a-z])", "", path.read_text(), flags=re.MULTILINE)
    assert settings_of([(path, tomllib.loads(example))], kind) != kind() == read_settings([path], kind)


@pytest.mark.parametrize("page", EXAMPLES)
@pytest.mark.usefixtures("users")
def test_the_examples_of_a_page_are_valid(page: str) -> None:
    found = [each for each in ("\n".join(lines) for lines in examples(page)) if _SETTINGS.search(each)]
    assert found
    wrong = {each: [_error(each, kind) for kind in EXAMPLES[page]] for each in found}
    assert {each: errors for each, errors in wrong.items() if all(errors)} == {}


def _error(text: str, kind: type[Any]) -> str:
    """Return what is wrong with *text* as settings of *kind*; empty if nothing is. An excerpt has the certificates of another example."""
    text = _CERTIFICATES + text if 'transport = "direct"' in text and "[tls]" not in text else text
    try:
        settings_of([(Path("x.toml"), tomllib.loads(text))], kind)
    except ConfigError as error:
        return str(error)
    return ""
