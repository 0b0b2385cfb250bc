# Names of numbers and numbers of names, in one dict.
rt_type: dict[int | str, int | str]
rt_proto: dict[int | str, int | str]
