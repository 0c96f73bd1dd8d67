"""How good a model is: filtered ranking, metrics, what each size retains."""
