"""``sbusctl top``: samples of the bus and of the kernel, what happened between two of them, and how that is shown."""
