"""Readers of image files: one module per format."""
