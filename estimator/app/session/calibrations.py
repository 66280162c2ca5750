"""Which coefficients an estimate uses: ``--calibration auto|none|PATH``."""

from estimator.coefficients import Coefficients, default_coefficients

from .problems import refusal


def coefficients_in_use(calibration: str | None) -> Coefficients:
    """The documented defaults (``none``), or a fitted calibration (``auto``: the shipped one, or a file)."""
    if calibration not in (None, "auto", "none"):
        message = (
            f"--calibration {calibration!r}: fitted calibrations cannot be read yet; auto and none are the defaults."
        )
        raise refusal("not_modelled", "calibration", message)
    return default_coefficients()
