"""Recurrent layers: states by node of a draft tree, and all nodes of a pass at once."""
