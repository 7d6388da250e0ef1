"""Group self-attention with positional encodings (GSA-Net, GE-ViT)."""
