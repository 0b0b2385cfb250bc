"""What the programs of this project share: configuration, systemd, options, standard streams, and the frame of a service."""
