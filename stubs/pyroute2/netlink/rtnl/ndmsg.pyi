from pyroute2.netlink import nlmsg

NTF_PROXY: int
NUD_NONE: int
NUD_NOARP: int
NTF_VALUES: dict[int, str]
NUD_VALUES: dict[int, str]

class ndmsg(nlmsg): ...
