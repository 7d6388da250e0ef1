"""Transformer blocks on the group, and the plain ones."""
