"""Recipes, the Lightning module, run folders."""
