"""How much faster or slower than planned a run goes, so that the time left and the end are kept."""

from dataclasses import dataclass

_EXPECTED_STARTUP_SECONDS = 20.0
_PRIOR_SECONDS = 20.0
"""The plan counts as this much experience."""


@dataclass(slots=True, kw_only=True)
class Pace:
    """Actual over predicted time of the rows so far."""

    startup_seconds: float = _EXPECTED_STARTUP_SECONDS
    """Of a runner until its first job: as last seen."""
    _predicted: float = _PRIOR_SECONDS
    _actual: float = _PRIOR_SECONDS

    def take(self, predicted_seconds: float, actual_seconds: float) -> None:
        """Learn from one row."""
        self._predicted += predicted_seconds
        self._actual += actual_seconds

    def corrected(self, predicted_seconds: float) -> float:
        """A prediction in the light of what was seen."""
        return predicted_seconds * self._actual / self._predicted
