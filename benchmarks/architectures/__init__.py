"""Every architecture of transformers beside its own `generate`."""
