"""Guards: decide which of a correction model's edits are written to a file."""
