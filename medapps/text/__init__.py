"""BERT-MED: one fine-tuned language model whose narrower widths are models of their own.

Needs the extra `text`. Nothing else in the package imports this room but its command.
"""
