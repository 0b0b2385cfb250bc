from pyroute2.netlink import nlmsg

IFA_F_VALUES: dict[int, str]

class ifaddrmsg(nlmsg): ...
