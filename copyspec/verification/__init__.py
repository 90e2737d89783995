"""Verification: picks the target's token at each node of the draft tree and walks along the accepted path."""
