"""What several test folders share: checkpoints, comparisons, small clients."""
