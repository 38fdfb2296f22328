"""Run folders: what was done, read back."""
