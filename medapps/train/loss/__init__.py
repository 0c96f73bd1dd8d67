"""The losses of MED: mutual learning, evolution, loss weight, and what regularises."""
