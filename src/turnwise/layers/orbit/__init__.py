"""Views of an image under a group, and how predictions are combined over them."""
