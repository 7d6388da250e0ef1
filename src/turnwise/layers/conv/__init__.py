"""Group convolutions."""
