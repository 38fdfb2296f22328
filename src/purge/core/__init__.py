"""Errors, settings, files and progress: what every other room needs and nothing about learning."""
