"""Files of one kind of rows, read one after another: pieces of them, and what a first pass finds out."""
