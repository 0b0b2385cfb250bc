"""The commands of sbusctl(1), by topic. ``sbusctl.group`` lists them, and imports what is called."""
