"""Does tree verification equal plain decoding on this architecture? Tried on a small sibling of the model."""
