from pyroute2.netlink import nlmsg

RTNH_F_VALUES: dict[int, str]

class rtmsg(nlmsg): ...
