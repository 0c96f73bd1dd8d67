"""Quality of a recommender: lists, ranks, and references beside it."""
