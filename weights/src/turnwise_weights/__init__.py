"""Pretrained weights for turnwise, one folder each; turnwise finds them when this is installed."""
