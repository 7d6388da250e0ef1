"""Figures, pages, tables and model cards."""
