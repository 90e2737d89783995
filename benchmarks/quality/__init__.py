"""Quality of the bundled model and of the guards."""
