"""Deletion requests over time: what was asked, what was done, and that nobody changed the account of it."""
