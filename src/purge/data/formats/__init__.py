"""One reader for each form of files that images come in."""
