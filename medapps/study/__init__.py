"""Studies: many methods, sizes, tasks and data sets from one file."""
