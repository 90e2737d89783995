"""Temporary changes inside transformers models. No other package uses transformers' private names."""
