"""What the numbers of an audit show, typed: rules and thresholds, findings, and one comparator."""
