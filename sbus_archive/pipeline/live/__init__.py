"""The program sbus-live: tables of the last hour and alerts, computed from the live bus. Spec: sbus-live(8)."""
