"""Placeholder until the learnt forecast is in place."""


class GrowthForecast:
    """Always the default."""

    def note(self, num_output: int, *, is_cut: bool) -> None:
        """Nothing is learnt."""

    def remaining(self, num_output: int, most: int) -> int:
        """At most 32."""
        return min(most, 32)
