"""Performer layers: linear attention by random features."""
