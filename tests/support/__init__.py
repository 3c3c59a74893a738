"""What several test folders share: checkpoints, comparisons, small clients."""

import support.reference  # noqa: F401 - before anything here imports transformers
