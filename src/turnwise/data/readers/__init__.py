"""Readers of file formats and data sets."""
