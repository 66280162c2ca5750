"""Why a model could not be traced, for the message that the user reads."""


class TraceError(Exception):
    """The model is valid, but no operation list can be made of it."""

    code = "trace_failed"


class InputError(TraceError):
    """What was asked for is wrong: unknown model type, no such callable."""

    code = "bad_input"


class UnequalTracesError(TraceError):
    """Two traces that should differ in sizes only, differ in operations."""
