"""JSON schemas, read for what they allow; `schemas` does it."""

from mmserve.constrained.schemas import read_schema

__all__ = ["read_schema"]
