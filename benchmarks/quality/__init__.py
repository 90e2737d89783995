"""What the bundled model and the guards get right."""
