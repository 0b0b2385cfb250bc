"""The commands of sbusctl(1), grouped by topic. Only the module of the called command is imported."""
