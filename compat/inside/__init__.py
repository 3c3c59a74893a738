"""Scripts that run inside a client's own environment; nothing here imports mmserve."""
