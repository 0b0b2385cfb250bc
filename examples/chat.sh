#!/bin/sh
# A chat room for the shell. Run it in two terminals: examples/chat.sh
# It publishes each line that you type to chat/USER, and prints the lines of all users. Ctrl-D ends it.
set -eu

sbusctl sub chat/ &
subscriber=$!
trap 'kill "$subscriber"' EXIT

sbusctl pub --lines "chat/$(id -un)"
