"""store.toml: valid settings, and one clear line for each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbus_programs.config.documents import read_settings
from sbus_programs.config.files import ConfigError
from sbus_programs.config.loading import load_settings
from sbus_programs.config.store import StoreSettings
from tools.stage import ROOT

LOG = '[[stream]]\nname = "log"\nkeys = ["log/"]\n'
QUEUE = '[[queue]]\nname = "jobs"\nstream = "log"\n'


def read(folder: Path, text: str) -> StoreSettings:
    """Return the settings in *text*."""
    file = folder / "store.toml"
    file.write_text(text)
    return read_settings([file], StoreSettings)


def test_the_packages_of_feeds_add_streams() -> None:
    streams = load_settings(ROOT / "etc/store.toml", StoreSettings, required=True).streams
    assert sorted(each.name for each in streams) == ["logind", "net", "systemd", "udev"]


def test_streams_and_queues_are_read(tmp_path: Path) -> None:
    text = (
        LOG
        + 'retain = "7d"\nmax_bytes = "2GiB"\n'
        + QUEUE
        + 'backoff = ["1s", "1min"]\nin_order = "key"\ngroups = [0]\n[limits]\nleases = 5\n'
    )
    settings = read(
        tmp_path, text + '[[stream]]\nname = "state"\nkeys = ["net/", "unit/*/state"]\nlast = 1\non_subscribe = true\nretain = "0"\n'
    )
    log, state = settings.streams
    assert (log.name, log.patterns, log.last, log.retain, log.max_bytes) == ("log", (b"log/",), 0, 604_800.0, 2 << 30)
    assert (state.patterns, state.last, state.retain, state.on_subscribe) == ((b"net/", b"unit/*/state"), 1, 0.0, True)
    (queue,) = settings.queues
    assert (queue.stream, queue.backoff, queue.in_order, queue.groups, queue.origin.number) == ("log", (1.0, 60.0), "key", (0,), 1)
    assert (settings.limits.leases, settings.limits.readers) == (5, 64)
    assert settings.queue("jobs") is queue
    assert (settings.stream("state"), settings.stream("none"), settings.queue("none")) == (state, None, None)


def test_streams_are_closed_to_other_hosts_unless_they_are_named(tmp_path: Path) -> None:
    (closed,) = read(tmp_path, LOG).streams
    (named,) = read(tmp_path, LOG + "twins = [7, 8]").streams
    (every,) = read(tmp_path, LOG + 'twins = ["*"]').streams
    assert [stream.is_open_to(7) for stream in (closed, named, every)] == [False, True, True]
    assert [stream.is_open_to(9) for stream in (closed, named, every)] == [False, False, True]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[[stream]]\nname = "a/b"\nkeys = ["x"]', 'stream.1.name: must be 1 to 64 printable bytes without "/" and "*", such as "mail"'),
        (f'[[stream]]\nname = "{"é" * 33}"\nkeys = ["x"]', "must be 1 to 64 printable bytes"),
        ('[[stream]]\nname = "a"', "stream.1.keys: required key is missing"),
        ('[[stream]]\nname = "a"\nkeys = []', 'stream "a" has no keys'),
        ('[[stream]]\nname = "a"\nkeys = ["!/cred/1/2/3/"]', "does not keep private and reserved keys"),
        ('[[stream]]\nname = "a"\nkeys = ["store/x"]', "does not keep the keys of its calls and workers"),
        ('[[stream]]\nname = "a"\nkeys = ["a*b/"]', 'no key matches the pattern "a*b/"'),
        (LOG + '[[stream]]\nname = "other"\nkeys = ["*/x"]', 'streams "log" and "other" overlap: both store the keys "log/x"'),
        (LOG + LOG, 'duplicate [[stream]] with name = "log"'),
        (LOG + "on_subscribe = true", "on_subscribe sends last values; set last = 1"),
        (LOG + "twins = [0]", 'stream.1.twins.0: must be the number of a host, 1 to 4294967295, or "*" for every host, not 0'),
        (LOG + 'twins = ["alpha"]', "must be the number of a host"),
        (LOG + "twins = [true]", "must be the number of a host"),
        (LOG + 'retain = "7"', '"0" means no limit'),
        (LOG + 'max_bytes = "1KiB"', "must be 1MiB"),
        (QUEUE, 'queue "jobs": unknown stream "log"'),
        (LOG + "last = 1\n" + QUEUE, "sets last, which removes jobs"),
        (LOG + QUEUE + QUEUE.replace("jobs", "more"), 'queues "jobs" and "more" have the same stream "log"'),
        (LOG + QUEUE + 'dead = "log/dead/"', 'dead letters would come back as jobs, because "log/"'),
        (LOG + QUEUE + "backoff = []", "backoff is empty"),
        (LOG + QUEUE + 'in_order = "all"', "must be 'none' or 'key'"),
        (LOG + QUEUE + "tries = 0", "queue.1.tries: must be 1 to"),
        ('file = "store.sqlite"', "must be an absolute path"),
        ('file = ""', "file is empty"),
        ("[limits]\nlease = 5", "did you mean leases?"),
    ],
)
def test_a_mistake_is_one_clear_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_too_many_patterns_are_refused_at_once(tmp_path: Path) -> None:
    keys = ", ".join(f'"k{number}/"' for number in range(501))
    with pytest.raises(ConfigError, match="too many patterns in the keys of all streams: 501, at most 500"):
        read(tmp_path, f'[[stream]]\nname = "a"\nkeys = [{keys}]\n')


def test_patterns_of_one_stream_may_overlap(tmp_path: Path) -> None:
    assert read(tmp_path, '[[stream]]\nname = "a"\nkeys = ["a/", "a/b"]\n').streams[0].patterns == (b"a/", b"a/b")
