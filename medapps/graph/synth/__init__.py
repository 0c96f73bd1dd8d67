"""A synthetic shop with known causes."""
