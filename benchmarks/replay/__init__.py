"""Replays drafters along recorded outputs of real models, without running a model."""
