"""PURGE: the restart, which is the default, and the pull, which the paper has."""
