"""Training of the bundled default model. Nothing in the package imports this folder."""
