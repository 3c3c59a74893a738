"""What a kind of work costs, learnt from measurements one by one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["LinearCost"]

_PULL = 0.01
_LEARNING = 4
_FIRST_ERROR = 0.04
_SURPRISE = 3.0
_STRAINED = 1.5


class LinearCost:
    """A time in milliseconds as a sum of features with weights >= 0, learnt from measurements.

    Args:
        num_features: of every measurement; about 1 each when the work is usual.
        kept: weight that a measurement keeps when the next one comes, below 1.

    What is not exercised keeps its weight. A measurement counts as at most three times what was
    expected, so one pause spoils nothing, and a lasting change is followed within steps. What
    the features do not show (a longer context) goes into `strain`, a factor of the cost of the
    last feature that rises within about two measurements and falls within four.

    Source: least squares with exponential forgetting (Ljung, System Identification, 1999,
    section 11.2), in normal equations with a pull to the last weights instead of a covariance
    that grows without bound.
    """

    def __init__(self, num_features: int, *, kept: float) -> None:
        self._kept = kept
        self._squares = np.zeros((num_features, num_features))
        self._products = np.zeros(num_features)
        self._pull = _PULL * np.eye(num_features)
        self._weights = np.zeros(num_features)
        self._num_notes = 0
        self._strain = 1.0
        self._error = _FIRST_ERROR

    @property
    def is_known(self) -> bool:
        """Whether anything was measured. Pure."""
        return self._num_notes > 0

    @property
    def spread(self) -> float:
        """Standard deviation of measured over expected, from the mean excess. Pure."""
        return 2.5 * self._error

    def predict(self, features: tuple[float, ...]) -> float:
        """Expected milliseconds; 0 before anything was measured. Pure."""
        *others, last = self._weights * features
        return float(sum(others) + self._strain * last)

    def note(self, features: tuple[float, ...], cost_ms: float) -> None:
        """Learn from a measurement. Changes: weights, strain, spread."""
        expected_ms = self.predict(features)
        kept = self._kept
        if self._num_notes >= _LEARNING and expected_ms > 0:
            cost_ms = min(cost_ms, _SURPRISE * expected_ms)
            self._note_ratio(features, cost_ms / expected_ms)
            if expected_ms > 2 * cost_ms:
                kept = min(kept, 0.7)
        x = np.array(features)
        self._squares = kept * self._squares + np.outer(x, x)
        self._products = kept * self._products + x * cost_ms
        self._weights = self._solved()
        self._num_notes += 1

    def _note_ratio(self, features: tuple[float, ...], ratio: float) -> None:
        """Learn from measured over expected. Changes: strain, spread."""
        self._error += (max(ratio - 1, 0.0) - self._error) / 16
        last_ms = self._strain * float(self._weights[-1]) * features[-1]
        if 2 * last_ms < self.predict(features):
            return  # too little of it depends on the strain
        ratio = min(max(ratio, 1 / _STRAINED), _STRAINED)
        strain = self._strain * (1 + (ratio - 1) / (2 if ratio > 1 else 4))
        self._strain = min(max(strain, 0.5), 3.0)

    def _solved(self) -> NDArray[np.float64]:
        """Weights of the least error, none below 0. Pure."""
        left = self._squares + self._pull
        right = self._products + self._pull @ self._weights
        weights = np.zeros(len(right))
        used = np.arange(len(right))
        while len(used):
            solved = np.linalg.solve(left[np.ix_(used, used)], right[used])
            if solved.min() >= 0:
                weights[used] = solved
                break
            used = used[solved > 0]
        return weights
