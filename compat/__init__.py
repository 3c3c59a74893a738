"""Outside clients against `mmserve serve`: what others wrote for the same wire format."""
