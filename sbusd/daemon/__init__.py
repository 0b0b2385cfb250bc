"""The program ``sbusd``: its command line, listening socket, signals and main loop."""
