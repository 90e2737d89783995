"""The eager runner: passes through the public forward of a model, whose Python runs each time."""
