"""The control plane: admits connections, applies rules and quotas, and replies to control messages."""
