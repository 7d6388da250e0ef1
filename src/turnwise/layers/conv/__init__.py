"""Group convolutions, norms and pools of regular features, and stems."""
