"""Integrations of copyspec into other engines and frameworks, which are imported only when they are used."""
