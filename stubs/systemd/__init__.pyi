# What sbusd uses of systemd-python 235, which ships no types.
