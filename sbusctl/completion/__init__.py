"""Completion of command lines in bash, zsh and fish: the scripts, and the replies to them."""
