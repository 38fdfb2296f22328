"""Experiments: a YAML file becomes jobs, jobs become results, results become tables and figures."""
