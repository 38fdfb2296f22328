"""PURGE by restart, the default."""
