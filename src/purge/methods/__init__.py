"""The unlearning methods, one file for each paper."""
