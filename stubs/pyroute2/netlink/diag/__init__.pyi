# Messages of sock_diag(7).
from pyroute2.netlink import nlmsg

SOCK_DIAG_BY_FAMILY: int
SS_ESTABLISHED: int
UDIAG_SHOW_PEER: int
UDIAG_SHOW_RQLEN: int

class unix_diag_req(nlmsg): ...

class unix_diag_msg(nlmsg):
    def __init__(self, data: bytes = ...) -> None: ...
    def decode(self) -> None: ...
