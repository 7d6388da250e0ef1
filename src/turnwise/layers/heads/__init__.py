"""Pooling and heads on the group."""
