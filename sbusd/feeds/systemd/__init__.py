"""The feed of units and jobs of systemd."""
