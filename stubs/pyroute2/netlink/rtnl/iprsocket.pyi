# The decoder of routing messages, rtnetlink(7).
from collections.abc import Iterator

from pyroute2.netlink import nlmsg_base

class MarshalRtnl:
    def parse(self, data: bytes) -> Iterator[nlmsg_base]: ...
