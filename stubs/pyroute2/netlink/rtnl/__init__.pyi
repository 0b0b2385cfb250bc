# The types of routing messages, rtnetlink(7).
RTM_NEWLINK: int
RTM_DELLINK: int
RTM_GETLINK: int
RTM_NEWADDR: int
RTM_DELADDR: int
RTM_GETADDR: int
RTM_NEWROUTE: int
RTM_DELROUTE: int
RTM_GETROUTE: int
RTM_NEWNEIGH: int
RTM_DELNEIGH: int
RTM_GETNEIGH: int

# Names of numbers and numbers of names, in one dict.
rt_type: dict[int | str, int | str]
rt_proto: dict[int | str, int | str]
