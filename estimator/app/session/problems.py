"""Errors: how the session words and documents them."""

from estimator.specs.errors import Problem, SpecError


def refusal(code: str, field: str | None, message: str) -> SpecError:
    """Bad input with a single problem."""
    return SpecError(Problem(code=code, field=field, message=message))


def error_document(problems: tuple[Problem, ...]) -> dict[str, object]:
    """``{"error": {code, message, field}}``; with several problems all of them under ``problems``."""
    first = problems[0]
    message = "\n".join(problem.message for problem in problems)
    error: dict[str, object] = {"code": first.code, "message": message, "field": first.field}
    if len(problems) > 1:
        error["problems"] = [{"code": p.code, "message": p.message, "field": p.field} for p in problems]
    return {"error": error}
