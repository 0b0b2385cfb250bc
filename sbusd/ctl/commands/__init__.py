"""The commands of sbusctl(1), each in the file of its name. Only the one that is called is imported."""
