from __future__ import annotations

import base64
import json

from hypothesis import given
from hypothesis import strategies as st

from sbusd.broker.json_encoding import connection_members, key_members
from sbusd.protocol.credentials import Credentials


@given(st.binary())
def test_what_is_spelt_can_be_read_back_from_json(data: bytes) -> None:
    members = json.loads(json.dumps(key_members("key", data)))
    encoded = members.get("key_base64")
    assert (members["key"].encode() if encoded is None else base64.b64decode(encoded)) == data


def test_spelling_is_base64_too_only_where_text_does_not_do() -> None:
    assert key_members("key", b"a\\xff") == {"key": "a\\xff"}
    assert key_members("key", b"a\xff") == {"key": "a\\xff", "key_base64": "Yf8="}


def test_connection_is_described_by_its_number_credentials_and_the_time() -> None:
    assert connection_members(5, Credentials(55, 1_000, 7), b"", 12) == {"id": 5, "cred": "!/cred/7/1000/55", "time": 12}
    assert connection_members(5, Credentials(1, 2, 3), b"!/cred/0/0/0", 12)["cred"] == "!/cred/0/0/0/!/cred/3/2/1"
