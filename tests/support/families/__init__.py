"""Tiny seeded checkpoints, a file for each family; `support.proof` says what they give."""
