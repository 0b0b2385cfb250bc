"""What ``sbusctl doctor`` looks at. Each module judges facts it is given, and has a function that gathers them."""
