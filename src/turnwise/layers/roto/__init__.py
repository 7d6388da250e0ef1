"""RotoConv and the MetaFormer block."""
