"""Centred grids, neighbourhoods, exact sizes, warps and tensor layouts."""
