"""sbusctl(1), the command line tool. The commands are in ``commands``; rendering and fetching are separate."""
