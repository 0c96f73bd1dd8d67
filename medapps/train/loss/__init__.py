"""The losses of MED: mutual learning, evolution, loss weight; a faster way to the usual ones."""
