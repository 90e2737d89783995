"""Verification: how the target's token is picked at each node, and the walk along the draft tree."""
