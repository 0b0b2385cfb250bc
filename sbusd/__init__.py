"""sbusd, the bus: a message bus for one machine. The other packages are its clients, or what it shares with them."""
