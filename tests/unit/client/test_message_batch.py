"""The messages of a batch that wait as one."""

from __future__ import annotations

import subprocess
import sys

from sbusd.client.message_batch import MessageRun, measure_run
from sbusd.client.messages import Message
from sbusd.protocol.batches import BATCH_HEAD, join_batch
from tools.stage import ROOT


def test_a_run_knows_its_messages_and_their_size() -> None:
    messages = [Message(b"a", b""), Message(b"", b"\0x"), Message(b"b/c", b"y" * 300)]
    batch = join_batch([b"MSG %b\0%b" % (each.key, each.payload) for each in messages])
    run = MessageRun(batch, len(BATCH_HEAD), *measure_run(batch, len(BATCH_HEAD)))
    assert run.count == 3
    assert run.messages() == messages
    assert run.size == sum(len(each.key) + len(each.payload) for each in messages)


def test_what_is_not_built_is_replaced_and_said_so() -> None:
    program = (
        "import sys; sys.modules['sbusd.client._speedups.scanner'] = None\n"
        "from sbusd.client import message_batch\n"
        "from sbusd.client._speedups import plain_scanner\n"
        "assert message_batch.measure_run is plain_scanner.measure_run\n"
        "print(message_batch.IS_COMPILED)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=True, text=True)
    assert done.stdout == "False\n"
