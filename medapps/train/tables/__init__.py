"""Tables of vectors: float32, bfloat16 or in a file, and their optimisers."""
