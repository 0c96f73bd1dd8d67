"""Knowledge graphs: ids, reading, checking, splits and synthetic data."""
