"""What changes a model's scores before a token is picked."""
