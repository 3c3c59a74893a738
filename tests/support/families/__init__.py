"""Tiny seeded checkpoints, one file a family of models; `support.proof` says what each gives."""
