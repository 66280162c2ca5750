"""Which coefficients an estimate uses: ``--calibration auto|none|PATH``."""

from estimator.coefficients import Coefficients, default_coefficients
from estimator.specs.hardware import Cluster


def coefficients_in_use(calibration: str | None, cluster: Cluster) -> Coefficients:
    """The documented defaults, or a fitted calibration where one is named or shipped."""
    return default_coefficients()
