"""Measurements side by side: `python -m benchmarks.NAME [--quick] [--json FILE|-]`."""
