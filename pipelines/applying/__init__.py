"""Applies the edits that agents write to files, exactly where that is possible and with a model elsewhere."""
