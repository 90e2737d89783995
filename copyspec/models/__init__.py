"""Models by name, folder or object: found, checked and loaded."""
