"""What runs a method or a training: steps, checks, losses, projection, precision, seeds."""
