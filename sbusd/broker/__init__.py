"""The control plane: admits connections, decides by the rules, charges quotas, and answers control messages."""
