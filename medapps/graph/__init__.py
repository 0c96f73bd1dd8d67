"""Knowledge graphs: names to numbers, reading, checking, making."""
