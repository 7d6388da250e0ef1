"""Certificates of invariance."""
