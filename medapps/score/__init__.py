"""What a score is: one short file per scorer, with NumPy alone at import; see rules.RULES."""
