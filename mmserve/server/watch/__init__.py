"""What the server tells of itself: facts, health, metrics, drawings."""
