"""Import weights of the original programs."""
