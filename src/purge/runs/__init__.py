"""Run folders: what was done, read back; and gates for pipelines."""
