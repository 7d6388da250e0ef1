"""Modules with weights: projections, patch embeddings, blocks."""
