"""From images to outputs."""
