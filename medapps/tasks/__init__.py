"""What the vectors are for: user labels and product recommendation."""
