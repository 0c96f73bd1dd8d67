"""The nearest entities of a crop, exactly or by an index."""
