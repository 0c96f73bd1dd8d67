"""Which triples a step sees: order, negatives, partitions, held-out triples."""
