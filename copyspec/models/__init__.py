"""Models by short names and from GGUF files: found, converted once, kept in the user's cache."""
