"""Targets: models entered through their public forward, with a cache that holds trees."""
