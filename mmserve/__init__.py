"""mmserve: a serving engine for programs over image and video language models."""
