"""Who the sender of a message of another host is: for programs that test it, for the store and for triggers of the receiving host."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from sbus import Bus, Message
from sbus.protocol import controls
from sbus.protocol.credentials import Peer
from sbus_programs.config.certificates import CertificateFiles
from sbus_services.link.network.direct import DirectNetwork, DirectSettings
from sbus_services.link.rules import Export, Import, Rules
from tests.support.authority import Authority
from tests.support.daemons import Daemon, StartDaemon
from tests.support.free_ports import free_port
from tests.support.relays import wait_for
from tests.support.running_links import RunningLink
from tests.support.store_programs import BUS_RIGHTS, StoreCaller, StoreProgram
from tests.support.trigger_programs import TriggerProgram
from tests.support.users import FIRST

pytestmark = pytest.mark.usefixtures("needs_root")

RULES = '[[on]]\nkeys = "alarm/"\nfrom = ["*"]\nvouched_by = ["root"]\nstart = "alarm.service"\n'
STREAM = '[[stream]]\nname = "alarms"\nkeys = ["alarm/"]\nlast = 1\n'


def _links(buses: dict[str, Daemon], folder: Path) -> Iterator[RunningLink]:
    """Yield the links of alpha and beta, which share ``alarm/`` and ``live/``."""
    authority, port = Authority(folder), free_port()
    for name, other in (("alpha", "beta"), ("beta", "alpha")):
        signed = authority.sign(name)
        files = CertificateFiles(signed.certificate, signed.key, authority.certificate)
        listen = ("127.0.0.1", port if name == "alpha" else free_port())
        settings = DirectSettings("R", name, listen, {other: ("127.0.0.1", port) if name == "beta" else None}, files)
        shared = tuple(Import(keys, shared=True) for keys in (b"alarm/", b"live/"))
        rules = Rules("R", name, (Export(b"alarm/"), Export(b"live/")), shared)
        yield RunningLink(rules, buses[name].path, partial(DirectNetwork, settings))


def _charged(owner: StoreCaller) -> list[tuple[int, str]]:
    """Return the accounts that have messages in the stream of the store: user and host."""
    (stream,) = owner.call("streams")["streams"]
    return [(each["uid"], each["host"]) for each in stream["users"]]


def test_a_message_of_another_host_is_never_one_of_a_user_of_this_host(daemon: StartDaemon, tmp_path: Path) -> None:
    rights = tmp_path / "rights.toml"
    rights.write_text(BUS_RIGHTS)
    buses = {name: daemon("-C", str(rights)) for name in ("alpha", "beta")}
    folders = {name: tmp_path / name for name in buses}
    for folder in folders.values():
        folder.mkdir()
    with ExitStack() as stack:
        for name, bus in buses.items():
            stack.enter_context(StoreProgram(folders[name], bus.path, STREAM))
        trigger = stack.enter_context(TriggerProgram(folders["beta"], buses["beta"].path, RULES))
        reader = stack.enter_context(Bus.connect(buses["beta"].path))
        reader.tell(controls.SENDER_ON)
        messages = reader.subscribe("live/", "alarm/")
        links = [stack.enter_context(link) for link in _links(buses, tmp_path)]
        for link, other in zip(links, ("beta", "alpha"), strict=True):
            link.wait_for_hosts(other)
        links[1].synchronize()
        with StoreCaller(buses["alpha"].path, FIRST) as caller:
            writer = caller.call("put", [(b"alarm/stored", b"1")])
            assert writer["seqs"]
            caller.bus.publish("live/plain", b"2")
        senders: dict[str, Peer] = {}
        while len(senders) < 2:
            message = messages.receive(timeout=60.0)
            if isinstance(message, Message):  # else a notice of the links, which have just begun to know each other
                assert message.sender is not None
                senders[message.key] = message.sender
        for sender in senders.values():
            assert (sender.uid, sender.gid, sender.pid) == (-1, -1, -1)
            assert sender.voucher is not None
            assert sender.voucher.uid == os.geteuid()
        author = f"!/cred/{FIRST.gid}/{FIRST.uid}/"
        assert senders["live/plain"].origin.startswith(f"!/host/alpha/{author}")
        voucher, _, rest = senders["alarm/stored"].origin.removeprefix("!/host/alpha/").partition("/!/store/")
        assert voucher.startswith(f"!/cred/{os.getegid()}/{os.geteuid()}/")
        assert rest.startswith(author)
        trigger.wait_for_counts(messages=1, wrong_sender=1)
        assert trigger.calls == []
        with StoreCaller(buses["beta"].path) as owner:
            wait_for(lambda: owner.call("last", patterns="alarm/")["messages"], "the message in the store of beta")
            (stored,) = owner.call("last", patterns="alarm/")["messages"]
            assert (stored["uid"], stored["origin"]) == (-1, senders["alarm/stored"].origin)
            wait_for(lambda: _charged(owner) == [(-1, "!/host/alpha")], "the account of the host alpha")
