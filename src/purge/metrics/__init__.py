"""The metrics of an audit, one file for each family."""
