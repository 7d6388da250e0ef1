"""WHERE tokens are: centred grids, neighbourhoods, exact sizes, warps."""
