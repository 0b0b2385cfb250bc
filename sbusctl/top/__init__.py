"""``sbusctl top``: samples of the bus and the kernel, the rates between them, and their display."""
