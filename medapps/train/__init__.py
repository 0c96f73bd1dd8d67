"""Training and ranking of croppable embeddings."""
