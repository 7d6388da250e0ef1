"""Models in production."""
