"""The commands of sbusctl(1), one per file. Only the command that is called is imported."""
