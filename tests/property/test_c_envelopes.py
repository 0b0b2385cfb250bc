"""The envelopes that ``clients/c/sbus.h`` reads are those that the Python client reads."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sbus.protocol.envelope import Envelope, parse_envelope
from sbus.protocol.errors import ProtocolError
from tests.support.c_programs import Parser, client_program

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def parser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parser]:
    """The C program, which parses one packet after the other."""
    running = Parser(client_program("parser", tmp_path_factory.mktemp("c")))
    yield running
    running.close()


_TEXT = st.text(max_size=8) | st.sampled_from(["", "u" * 128, "u" * 129, '\\"/', "\t", "\x7f", "é", "😀", "aGk=", "aGk", "====", "A==="])
_NUMBER = st.integers(-1, 4) | st.sampled_from([31_536_000, 31_536_001, 1 << 53, (1 << 53) + 1, 1 << 64, 1 << 70, 1.0, True, None])
_LIST = st.lists(st.integers(-1, 5), max_size=3) | st.just([0] * 257)
_ANY = st.recursive(
    _TEXT | _NUMBER | st.booleans() | st.floats(allow_nan=False, allow_infinity=False), lambda inner: st.lists(inner, max_size=3)
)
_HEX = st.sampled_from(["0", "4", "a", "f"]).map(lambda digit: digit * 2) | st.sampled_from(["0F", "g0", "00", "cc"])
_CONTEXT = (
    st.builds(
        "{}-{}-{}-{}{}".format, _HEX, _HEX.map(lambda two: two * 16), _HEX.map(lambda two: two * 8), _HEX, st.sampled_from(["", "-x", "-"])
    )
    | st.sampled_from(["cc-" + "1" * 32 + "-" + "1" * 16 + "-01-" + "x" * size for size in (200, 201)])
    | _ANY
)
_OPTIONAL = {
    "exp": _NUMBER,
    "try": _NUMBER,
    "src": _NUMBER,
    "now": _NUMBER,
    "dst": _LIST | _ANY,
    "ret": _TEXT,
    "err": _TEXT,
    "shm": _TEXT,
    **dict.fromkeys(("cancel", "seq", "more", "win"), _NUMBER),
    "ctx": _CONTEXT,
    "dat": _TEXT | st.binary(max_size=6).map(lambda data: base64.b64encode(data).decode()),
    "other": _ANY,
}
_REQUIRED = {"ver": st.just(1) | _NUMBER, "uid": st.just("u") | _TEXT, "cmd": st.just("c") | _TEXT}
_PLAIN = st.text('abc/ "\\\\~', min_size=1, max_size=8)
_COUNT = st.integers(0, 1000)
_GOOD = st.fixed_dictionaries(
    {"ver": st.just(1), "uid": _PLAIN, "cmd": _PLAIN | st.just("é😀")},
    optional={
        **dict.fromkeys(("exp", "try", "src", "now", "seq", "win"), _COUNT),
        **dict.fromkeys(("cancel", "more"), st.integers(0, 1)),
        "ctx": _CONTEXT,
        "ret": _PLAIN,
        "err": st.text(max_size=8),
        "dst": st.lists(_COUNT, max_size=3),
        "dat": st.binary(max_size=6).map(lambda data: base64.b64encode(data).decode()),
        "other": _ANY,
    },
)
_MEMBERS = _GOOD | st.fixed_dictionaries(_REQUIRED, optional=_OPTIONAL)
_WRITTEN = st.builds(
    lambda members, ascii_only, indent: json.dumps(members, ensure_ascii=ascii_only, indent=indent),
    _MEMBERS,
    st.booleans(),
    st.sampled_from([None, 1]),
)
_BYTES = _WRITTEN.map(lambda text: text.encode("utf-8", "surrogatepass"))


def _damaged(data: bytes, place: int, byte: int) -> bytes:
    """Return *data* with another byte."""
    place %= len(data)
    return data[:place] + bytes([byte]) + data[place + 1 :]


@given(payload=_BYTES | st.builds(_damaged, _BYTES, st.integers(0, 300), st.integers(0, 255)) | st.binary(max_size=30))
@example(payload=b'{"ver":1,"uid":"u","cmd":"c"}')
@example(payload=b'{"ver":1,"uid":"u","cmd":"c"} x')
@example(payload=b'{"ver":1,"uid":"u","cmd":"\\ud83d\\ude00"}')
@example(payload=b'{"ver":1,"uid":"u","cmd":"\\ud83d"}')
@example(payload=b'{"ver":1,"uid":"u","cmd":"c","ctx":"' + b"x" * 300_000 + b'"}')
@example(payload=b'{"ver":1,"uid":"u","cmd":"c","ctx":"00-%b-%b-01"}' % (b"4b" * 16, b"f0" * 8))
@example(payload=b'{"ver":1,"uid":"u","cmd":"c","win":-1}')
@example(payload=b'{"ver":1,"uid":"u","cmd":"c","seq":9007199254740993}')
@example(payload=b'{"ver":01,"uid":"u","cmd":"c"}')
def test_they_agree(parser: Parser, payload: bytes) -> None:
    """C accepts fewer: uid and ret in ASCII. It leaves to its caller whether the command is one, which it compares with its own."""
    fields = parser.envelope(payload)
    envelope, problem = _parsed(payload)
    if _has_repeated_member(payload):
        return
    if envelope is None:
        assert not fields or "cmd" in problem
        return
    if not (envelope.uid + envelope.reply_to).isascii() or b"Infinity" in payload or b"NaN" in payload:
        return
    texts = (envelope.uid, envelope.command, envelope.reply_to, envelope.error)
    expected = [text.encode().hex() for text in texts] + [envelope.data.hex(), envelope.context.encode().hex()]
    expected += [str(number) for number in (envelope.cancel, envelope.part, envelope.more, envelope.window)]
    assert fields == [str(envelope.expires_seconds), str(envelope.sent_at), *expected]


def _parsed(payload: bytes) -> tuple[Envelope | None, str]:
    """Return the envelope that Python reads, or None and why there is none."""
    try:
        return parse_envelope(payload), ""
    except ProtocolError as error:
        return None, str(error)


def _has_repeated_member(payload: bytes) -> bool:
    """Return whether a member occurs twice: then C checks both, and Python the last one."""
    names: list[str] = []
    try:
        json.loads(payload, object_pairs_hook=lambda pairs: names.extend(name for name, _ in pairs))
    except (ValueError, RecursionError):
        return False
    return len(names) > len(set(names))
