"""Models in production: the HTTP service."""
