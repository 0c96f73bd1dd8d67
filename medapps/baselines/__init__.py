"""Other ways to a small model: trained alone, extracted, projected or distilled."""
