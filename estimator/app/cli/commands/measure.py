"""``traincast measure``."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import click

from benchmarks.campaign import CampaignProgress, CampaignSummary
from benchmarks.store import MeasurementStore, read_rows, write_json_lines
from estimator.specs.errors import Problem, SpecError
from estimator.specs.measurement import Measurement
from estimator.specs.units import format_bytes, format_seconds

from ...session.measuring import (
    MeasurementSession,
    MeasureRequest,
    default_store_folder,
    prepare_session,
    require_training_software,
)
from ...session.options import OPTION_BY_KEY, parse_value
from ..arguments import format_option
from ..diagnostics import ExitCode, note, print_notes
from ..measurement_tables import dry_run_document, measurement_csv_rows, print_dry_run, print_summary, summary_document
from ..output import print_csv, print_json

_AXES = ("precision", "sequence_length", "image_size", "gpu_memory_gib", "attention", "optimizer")
_SWITCHES = ("tf32", "compile")


def _several(*names: str, help_text: str, metavar: str = "LIST") -> Callable[[Any], Any]:
    """An option that may be repeated or hold values with commas between them."""
    return click.option(*names, multiple=True, metavar=metavar, help=help_text)


@click.command(name="measure")
@_several("--model", help_text="Bundled name, config.json, folder or hub id.", metavar="NAME")
@click.option("--set", "settings_of_config", multiple=True, metavar="KEY=VALUE", help="Override a config field.")
@_several("--strategy", help_text="all, or none, zero_1..3, fsdp_shard_grad_op, fsdp_full_shard. [default: none]")
@click.option("--offload/--no-offload", default=None, help="[default: off; both with --strategy all]")
@click.option(
    "--activation-checkpointing/--no-activation-checkpointing",
    default=None,
    help="[default: off; both with --strategy all]",
)
@click.option(
    "--settings",
    type=click.Choice(["free-lunch", "naive", "both"]),
    help="Free lunch: SDPA, TF32, compile. Naive: eager attention, none of these. [default: as given below]",
)
@_several("--micro-batch-size", help_text="Samples per GPU and forward pass; auto finds the largest. [default: 1]")
@click.option(
    "--gradient-accumulation-steps", default="1", metavar="COUNT", show_default=True, help="Micro batches per step."
)
@_several("--sequence-length", help_text="Tokens per sample.")
@_several("--image-size", help_text="Pixels per side.")
@_several("--precision", help_text="bf16, fp16, fp32.")
@_several("--attention", help_text="sdpa, eager, flash_attention_2.")
@_several("--optimizer", help_text="Hugging Face optim names.")
@click.option("--tf32/--no-tf32", default=None)
@click.option("--compile/--no-compile", default=None)
@_several("--gpu-memory-gib", help_text="Cap the allocator, so that a large card answers for smaller ones.")
@click.option("--device", type=click.Choice(["auto", "cuda", "cpu"]), default="auto", show_default=True)
@click.option("--num-gpus", default="1", metavar="COUNT", show_default=True, help="Ranks on this machine.")
@_several("--sweep", help_text="Named rows: h200-micro, h200-plain, ...; they run before the grid.", metavar="NAME")
@click.option(
    "--jobs", "jobs_file", type=click.Path(path_type=Path), help="One workload a line, as JSON in option names."
)
@click.option("--micro-benchmarks", is_flag=True, help="Measure the machine itself: under two minutes.")
@click.option("--num-steps", default="5", metavar="COUNT", show_default=True, help="Timed steps at least.")
@click.option("--linear-check", is_flag=True, help="Also time steps with twice the accumulations.")
@click.option(
    "--store", "store_folder", type=click.Path(path_type=Path), help="Folder of records. [default: user data]"
)
@click.option(
    "--merge",
    "merged_from",
    type=click.Path(path_type=Path),
    help="First copy the rows of another store or JSON lines file into it.",
)
@click.option(
    "--export", "export_file", type=click.Path(path_type=Path), help="At the end write the store as JSON lines."
)
@click.option("--again", is_flag=True, help="Also run what the store already holds.")
@click.option(
    "--time-limit-minutes", type=click.FloatRange(min=0, min_open=True), help="End by then; what is finished is kept."
)
@click.option(
    "--timeout-seconds", type=click.FloatRange(min=0, min_open=True), help="A run silent for this long hangs."
)
@click.option("--dry-run", is_flag=True, help="Say what would run, and for how long.")
@format_option("table", "json", "csv")
def command(
    output_format: str,
    store_folder: Path | None,
    dry_run: bool,
    export_file: Path | None,
    merged_from: Path | None,
    **parameters: Any,
) -> int:
    """Run short real training steps on this machine and store what was seen.

    Rows that the store holds for the same software are not run again, so an interrupted run goes on where it
    stopped. Exits with 4 where nothing could be measured.

    Example: traincast measure --model pythia-160m --strategy all --micro-batch-size 1,4
    """
    folder = store_folder or default_store_folder()
    if merged_from is not None:
        _merge(folder, merged_from)
    asks_for_rows = any(parameters[name] for name in ("model", "sweep", "jobs_file", "micro_benchmarks"))
    if not asks_for_rows and (export_file is not None or merged_from is not None):
        _export(folder, export_file)
        return ExitCode.OK
    session = prepare_session(_request(parameters), folder)
    print_notes(session.plan.notes)
    if dry_run:
        if output_format == "table":
            print_dry_run(session)
        else:
            document = dry_run_document(session)
            print_json(document) if output_format == "json" else print_csv(document["rows"])
        return ExitCode.OK
    require_training_software()
    summary, was_interrupted = _run(session, parameters)
    print_notes(summary.notes)
    if output_format == "json":
        print_json(summary_document(session, summary))
    elif output_format == "csv":
        print_csv(measurement_csv_rows(summary.measurements))
    else:
        print_summary(session, summary)
    _export(folder, export_file)
    if was_interrupted:
        note("interrupted: what is finished is stored; the same command goes on from there")
        return ExitCode.INTERRUPTED
    if not summary.has_data:
        note("error: nothing could be measured")
        return ExitCode.MEASUREMENT_FAILED
    return ExitCode.OK


def _run(session: MeasurementSession, parameters: dict[str, Any]) -> tuple[CampaignSummary, bool]:
    """Carry it out; Ctrl-C and a polite kill end it cleanly."""
    began = time.monotonic()
    length = format_seconds(session.predicted_seconds)
    note(f"{len(session.plan.items)} rows, about {length}; stored in {session.store.folder}")
    campaign = session.campaign(
        time_limit_minutes=parameters["time_limit_minutes"],
        silence_seconds=parameters["timeout_seconds"],
        repeats_known=parameters["again"],
        on_progress=lambda progress: note(progress_line(progress, began)),
    )
    try:
        with _termination_interrupts():
            return campaign.run(session.plan.items), False
    except KeyboardInterrupt:
        return campaign.summary, True


def progress_line(progress: CampaignProgress, began: float) -> str:
    """``[ 3 done, 9 left, 210 s to go] pythia-410m ...: 52 ms, 9.8 GiB``."""
    elapsed = format_seconds(time.monotonic() - began)
    to_go = f"{progress.num_left} left, {format_seconds(progress.seconds_left)} to go"
    return f"[{elapsed}; {progress.num_done} done, {to_go}] {progress.job.title}: {result_words(progress.measurement)}"


def result_words(row: Measurement) -> str:
    """What came out, in few words."""
    if row.status == "oom":
        return "out of memory"
    if row.status != "ok":
        return f"{row.status}: {(row.reason or 'no reason given').splitlines()[-1][:300]}"
    words = []
    if row.step_time_seconds is not None:
        words.append(f"{format_seconds(row.step_time_seconds)} a step")
    if row.peak_allocated_bytes is not None:
        words.append(format_bytes(row.peak_allocated_bytes))
    return ", ".join(words) or "ok"


@contextmanager
def _termination_interrupts() -> Iterator[None]:
    """SIGTERM ends the command as Ctrl-C does: children first, results kept."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _merge(folder: Path, merged_from: Path) -> None:
    if not merged_from.exists():
        raise SpecError(
            Problem(code="file_not_found", field="merge", message=f"--merge {merged_from}: no such folder or file")
        )
    content = read_rows(merged_from)
    print_notes(content.notes)
    note(f"{MeasurementStore(folder).merge(content.measurements)} records copied from {merged_from}")


def _export(folder: Path, export_file: Path | None) -> None:
    if export_file is None:
        return
    content = MeasurementStore(folder).read()
    print_notes(content.notes)
    note(f"{write_json_lines(content.measurements, export_file)} records written to {export_file}")


def _request(parameters: dict[str, Any]) -> MeasureRequest:
    """Typed texts to values; SpecError names the option."""
    axes = {key: tuple(_values(key, parameters[key])) for key in _AXES if parameters[key]}
    options: dict[str, object] = {key: parameters[key] for key in _SWITCHES if parameters[key] is not None}
    if parameters["settings_of_config"]:
        options["set"] = parse_value(OPTION_BY_KEY["set"], parameters["settings_of_config"])
    sizes = _split(parameters["micro_batch_size"]) or ["1"]
    if "auto" in sizes and len(sizes) > 1:
        message = f"--micro-batch-size is {','.join(sizes)}; it must be auto, or sizes, not both."
        raise SpecError(Problem(code="bad_value", field="micro_batch_size", message=message))
    return MeasureRequest(
        models=tuple(_split(parameters["model"])),
        strategies=tuple(_split(parameters["strategy"])),
        offload=parameters["offload"],
        activation_checkpointing=parameters["activation_checkpointing"],
        settings=parameters["settings"],
        axes=axes,
        options=options,
        micro_batch_sizes=None if sizes == ["auto"] else tuple(map(_count("micro_batch_size"), sizes)),
        gradient_accumulation_steps=_count("gradient_accumulation_steps")(parameters["gradient_accumulation_steps"]),
        sweeps=tuple(_split(parameters["sweep"])),
        jobs_file=parameters["jobs_file"],
        micro_benchmarks=parameters["micro_benchmarks"],
        device=parameters["device"],
        num_gpus=_count("num_gpus")(parameters["num_gpus"]),
        num_steps=_count("num_steps")(parameters["num_steps"]),
        linear_check=parameters["linear_check"],
    )


def _split(texts: tuple[str, ...]) -> list[str]:
    return [word.strip() for text in texts for word in text.split(",") if word.strip()]


def _values(key: str, texts: tuple[str, ...]) -> list[object]:
    return [parse_value(OPTION_BY_KEY[key], word) for word in _split(texts)]


def _count(key: str) -> Callable[[str], int]:
    """A parser of whole numbers that names its option."""
    option = replace(OPTION_BY_KEY["num_gpus"], key=key)

    def count(text: str) -> int:
        value = parse_value(option, text)
        assert isinstance(value, int)
        return value

    return count
