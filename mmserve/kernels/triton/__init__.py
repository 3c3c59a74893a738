"""Kernels in Triton, twins of those in torch; imported only where they are chosen.

Owns no state beside what Triton compiled. Called by `kernels.choice`; nothing here is imported
with the room above, so that no other machine needs Triton.
"""
