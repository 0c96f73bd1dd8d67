"""The parts of the recommender, arrays in and arrays out."""
