"""Models by name, file, folder or object: found, converted, checked and loaded."""
