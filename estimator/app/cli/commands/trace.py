"""``traincast trace``."""

from pathlib import Path

import click

from estimator.specs.errors import Problem, SpecError

from ...session.tracing import ATTENTION_CHOICES, TraceAnswer, trace_model
from ..arguments import format_option
from ..diagnostics import ExitCode, note, print_notes
from ..output import Page, facts_table, print_json


@click.command(name="trace")
@click.argument("model")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="File to write [NAME.trace.json].")
@click.option(
    "--sequence-length",
    type=click.IntRange(min=8),
    metavar="COUNT",
    help="Length at which the size formulas are checked; the file holds for other lengths as well.",
)
@click.option("--image-size", type=click.IntRange(min=8), metavar="COUNT", help="Pixels a side; the file is for it.")
@click.option(
    "--attention",
    type=click.Choice(ATTENTION_CHOICES),
    default="both",
    show_default=True,
    help="Attention to trace: fused kernels (sdpa), eager, or both.",
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change a field of the config.")
@format_option("table", "json")
def command(
    model: str,
    out: Path | None,
    sequence_length: int | None,
    image_size: int | None,
    attention: str,
    settings: tuple[str, ...],
    output_format: str,
) -> int:
    """Write the operation list of any torch model to a file that --model takes, here or in an install without torch.

    MODEL is a bundled name, a config.json, a folder, a hub id, or module:callable. Of a config no weights and no code
    are loaded (auto_map is ignored). module:callable is your own Python, looked up here: it takes batch_size and, for
    models over sequences, sequence_length, and returns (torch.nn.Module, inputs); forward returns the loss, or
    something whose .loss it is.

    Needs the extra "measure" (torch); runs on the CPU, without memory for weights.

    Example: traincast trace ./t5-base/config.json --out t5.json && traincast plan --model t5.json --gpu h100
    """
    answer = trace_model(
        model,
        overrides=dict(_setting(entry) for entry in settings),
        attention=attention,
        sequence_length=sequence_length,
        image_size=image_size,
        out=out,
        on_progress=lambda phase: note(f"{phase} ..."),
    )
    print_notes(answer.notes)
    if output_format == "json":
        print_json(answer.document())
    else:
        _print_table(answer)
    return ExitCode.OK


def _setting(text: str) -> tuple[str, object]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise SpecError(Problem(code="bad_value", message=f"--set {text}: write KEY=VALUE.", field="set"))
    return key, value


def _print_table(answer: TraceAnswer) -> None:
    document, provenance = answer.document(), answer.model.provenance
    listed = next(iter(answer.model.variants.values()))
    blocks = "; ".join(f"{group.num_blocks} x {group.class_name} ({group.name})" for group in listed.blocks)
    page = Page()
    page.add(
        facts_table([
            ("model", f"{answer.model.name} ({provenance.get('class', 'unknown class')})"),
            ("parameters", f"{listed.num_parameters:,}"),
            ("input", answer.model.input_kind),
            ("blocks", blocks or "none found: the whole model is one"),
            ("depth", provenance.get("depth", "unknown")),
            ("variants", ", ".join(answer.model.variants)),
            ("file", str(document["file"])),
            ("next", f"traincast plan --model {document['file']} --gpu h100"),
        ])
    )
    page.print()
