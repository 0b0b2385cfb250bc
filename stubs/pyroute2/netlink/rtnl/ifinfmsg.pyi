from pyroute2.netlink import nlmsg

IFF_VALUES: dict[int, str]

class ifinfmsg(nlmsg): ...
