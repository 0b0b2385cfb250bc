"""sbusctl(1), the command line tool. Each command has a file in ``commands``; rendering and fetching are separate."""
