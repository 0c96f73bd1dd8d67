"""How a query meets an entity: all prefixes in one pass, with gradients written out by hand."""
