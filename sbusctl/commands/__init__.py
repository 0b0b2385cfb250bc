"""The commands of sbusctl(1), grouped by topic; ``sbusctl.group`` lists them. Only the module of the called command is imported."""
