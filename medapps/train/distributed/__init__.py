"""Training on several processes or machines: rows of the entity table sharded over processes."""
