"""A recommender as a folder that a browser runs: no server, no network."""
