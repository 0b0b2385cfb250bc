"""sbusctl(1): the bus as a person at a shell sees it. One file per command in ``commands``; rendering stands apart from fetching."""
