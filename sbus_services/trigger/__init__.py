"""The program sbus-trigger(8): messages start units of systemd."""
