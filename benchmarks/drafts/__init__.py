"""Cost of drafting, and gains of drafters other than copying."""
