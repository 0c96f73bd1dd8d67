"""Rival ways to a small model: each yields a Crop."""
