# Made from sbus/asyncio/blobs.py by "make faces": edit that.
"""Large messages and descriptors: a part of a bus."""

from __future__ import annotations

import os
from collections import deque

from sbus.arguments import check_count
from sbus.blobs import (
    Blob,
    BlobRecipient,
    blob_of,
    descriptor_of,
    get_request,
    gone,
    message_with,
    pass_request,
    put_terms,
    reference_payload,
    ticket_and_host_of,
    ticket_of,
    ticket_request,
)
from sbus.encoding import publication
from sbus.errors import BlobRefused, NoBlobService, SbusError, TimedOut
from sbus.inbox import LIST_ITEMS, Inbox
from sbus.items import Item, Message
from sbus.memory_files import BlobData
from sbus.notices import OnGap
from sbus.protocol.blobs import DEFAULT_EXPIRE, DEFAULT_TYPE, MAX_PASS_EXPIRE, parse_reference
from sbus.sync.blob_socket import BlobSocket
from sbus.sync.iteration import IterationByReceive
from sbus.sync.link import SyncLink
from sbus.sync.streams import Subscription


class BlobMethods:
    """Large messages and descriptors, a part of a bus."""

    _link: SyncLink
    _blobs: BlobSocket | None = None

    def publish_blob(
        self,
        key: str | bytes,
        data: BlobData,
        *,
        type: str = DEFAULT_TYPE,
        expire: float = DEFAULT_EXPIRE,
        uses: int | None = None,
        to: BlobRecipient = None,
        keep: bool = False,
    ) -> str:
        """Publish *data* of any size: as a sealed memfd, to which a message with *key* refers. Return its ticket. Spec: sbus-blob(8).

        *data* is bytes, the path of a file, or an open file, which is read to its end; a str is encoded in UTF-8. It is copied once,
        however many recipients there are; a file that is a sealed memfd is not copied. Subscribers need *blobs*. *type* is a media type,
        for them. The blob ends after *expire* seconds, 30 by default, at most 600; when used *uses* times; and, without *keep*, with this
        connection: a program that publishes and then ends needs *keep*, or the blob ends before its subscribers can get it. Every client
        that gets the message can get the blob, unless *to* names a uid, ``gid:NUMBER``, or a connection.

        Raises:
            BlobRefused: a quota is used up, or an argument is invalid.
            BlobTooLarge: the file is larger than the quota of this user.
            NoBlobService: sbus-blob does not run.
            OSError: *data* cannot be read.
            TypeError, ValueError: an argument has a wrong type, or a number is out of range. Nothing was sent.
            ProtocolError, TimedOut, Disconnected, Closed: as ``publish``.
        """
        publication(key, b"")
        terms = put_terms(type, expire, uses, to, keep=keep)
        blobs = self._blob_socket()
        fd, size = blobs.prepare(data)
        try:
            ticket, host = ticket_and_host_of(blobs.exchange({"request": "put", "size": size, **terms}, fd), blobs.address)
        finally:
            os.close(fd)
        packet = publication(key, reference_payload(ticket, size, type, expire, host))
        try:
            if not self._link.send_now(packet):
                self._link.send_later(packet)
        except SbusError:
            self.drop_blob(ticket)
            raise
        return ticket

    def get_blob(self, ticket: str, *, host: str = "") -> Blob:
        """Return the blob with *ticket*. With *host*, from a reference, it can be one of another host, which takes time to pull.

        Raises:
            BlobRefused: it is gone, is for another user, or cannot be pulled.
            NoBlobService, TimedOut: sbus-blob does not run, or does not respond.
            TypeError: *ticket* or *host* is not a str.
        """
        request, blobs = get_request(ticket, host), self._blob_socket()
        return blob_of((blobs.remote if host else blobs).exchange(request), blobs.address)

    def drop_blob(self, ticket: str) -> None:
        """End a blob of this user; clients that have it already keep it. Raises what ``get_blob`` raises."""
        answer = self._blob_socket().exchange(ticket_request("drop", ticket))
        answer.close()

    def pass_fd(self, fd: int, *, to: BlobRecipient, expire: float = MAX_PASS_EXPIRE) -> str:
        """Offer the descriptor *fd*, of any kind, to the uid or the connection *to*, and return its ticket, for ``take_fd``.

        Both users need the right ``pass``, blob.toml(5). It can be taken once, within *expire* seconds, at most 30. The caller may close
        *fd*. Raises what ``publish_blob`` raises.
        """
        request, blobs = pass_request(fd, to, expire), self._blob_socket()
        return ticket_of(blobs.exchange(request, fd), blobs.address)

    def take_fd(self, ticket: str) -> int:
        """Return a new descriptor, that of ``pass_fd`` with *ticket*; close it.

        Its sender chooses what it is, and may still have it: a read, a write, and even a close of it can block. Raises what ``get_blob``
        raises.
        """
        request, blobs = ticket_request("get", ticket, kind="any"), self._blob_socket()
        return descriptor_of(blobs.exchange(request), blobs.address)

    def _blob_socket(self) -> BlobSocket:
        """Return the connection to sbus-blob, which is made at its first request."""
        if self._blobs is None:
            self._blobs = BlobSocket(self._link.target.text, self._link.timeout)
        return self._blobs

    def _close_blobs(self) -> None:
        """Close the connection to sbus-blob."""
        if self._blobs is not None:
            self._blobs.close()


class BlobSubscription(IterationByReceive, Subscription):
    """A subscription with *blobs*: a message that refers to a blob is yielded with its content."""

    def __init__(self, link: SyncLink, inbox: Inbox, on_gap: OnGap | None, blobs: BlobSocket) -> None:
        super().__init__(link, inbox, on_gap)
        self._blobs = blobs
        self._unopened: deque[Item] = deque()

    def receive(self, timeout: float | None = None) -> Item:
        """Return the next item, as ``Subscription.receive``. An interrupted call returns its item the next time."""
        item = self._unopened.popleft() if self._unopened else super().receive(timeout)
        try:
            return self._opened(item)
        except BaseException:
            self._unopened.appendleft(item)
            raise

    def receive_many(self, limit: int = LIST_ITEMS, timeout: float | None = None) -> list[Item]:
        """Return the next item in a list: blobs are got one by one. Raises what ``Subscription.receive_many`` raises."""
        check_count(limit, "limit", 1)
        return [self.receive(timeout)]

    def _opened(self, item: Item) -> Item:
        """Return *item* with the content of its blob, or a ``BlobGone``."""
        reference = parse_reference(item.payload) if isinstance(item, Message) else None
        if not isinstance(item, Message) or reference is None:
            return item
        try:
            reply = self._blobs.remote.exchange(get_request(reference.ticket, reference.host))
            return message_with(item, blob_of(reply, self._blobs.address))
        except (BlobRefused, NoBlobService) as error:
            reason = error.reason
        except TimedOut as error:
            reason = str(error)
        self._link.session.counters.blobs_gone += 1
        return gone(item, reason)
