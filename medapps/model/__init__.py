"""Scorers: one file each, and the kernels that measure all prefixes in one pass."""
