"""Is a data set fit for use: problems, and what a graph must not tell."""
