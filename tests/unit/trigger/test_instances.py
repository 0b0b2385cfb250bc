"""Names of units: systemd-escape(1) agrees, and no key means another unit."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbusd.trigger.instances import UnitNameError, escaped, unit_of
from tests.unit.trigger.rules import rule

TEMPLATE = {"start": "x@.service"}


@pytest.mark.slow
@pytest.mark.parametrize("text", ["a/b", "../../x", ".hidden", "a b", "a-b", r"a\x2d", "é", "a.b:c_d", "a\nb", "%i", "a@b", "/", "a//b"])
def test_systemd_escapes_in_the_same_way(text: str) -> None:
    if shutil.which("systemd-escape") is None:
        pytest.skip("systemd-escape is not installed")
    found = subprocess.run(["systemd-escape", "--", text], check=True, capture_output=True, text=True).stdout
    assert escaped(text.encode()) == found.removesuffix("\n")


@given(st.binary(min_size=1, max_size=40).filter(lambda key: b"\0" not in key))
def test_every_instance_is_a_file_name_and_no_two_keys_have_the_same(key: bytes) -> None:
    unit = unit_of(rule(**TEMPLATE), key)
    assert re.fullmatch(r"x@(?!\.)[A-Za-z0-9:_.\\-]+\.service", unit)
    instance = unit.removeprefix("x@").removesuffix(".service")
    parts = re.findall(r"\\x[0-9a-f]{2}|.", instance)
    assert b"".join(bytes([int(part[2:], 16)]) if part[0] == "\\" else b"/" if part == "-" else part.encode() for part in parts) == key


def test_parts_of_a_key() -> None:
    assert unit_of(rule(start="plain.service"), b"any/key") == "plain.service"
    assert unit_of(rule(**TEMPLATE, instance=2), b"journal/nginx.service/err") == "x@nginx.service.service"
    first, second = (unit_of(rule(**TEMPLATE, instance="message"), b"k") for _ in range(2))
    assert first != second
    assert re.fullmatch(r"x@[0-9a-f]+\.[0-9]+\.service", first)


@pytest.mark.parametrize(
    ("instance", "key", "says"),
    [
        (3, b"a/b", "no text in segment 3"),
        (2, b"a//b", "no text in segment 2"),
        ("key", b"", "the key is empty"),
        ("key", b"n" * 256, "at most 255"),
    ],
)
def test_a_key_without_an_instance(instance: str | int, key: bytes, says: str) -> None:
    with pytest.raises(UnitNameError, match=says):
        unit_of(rule(**TEMPLATE, instance=instance), key)
