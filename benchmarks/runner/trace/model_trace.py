"""Traces a model in every variant and makes the ``TracedModel`` of it."""

import copy
import datetime
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version

from torch import nn

from estimator.specs.models.traced import TracedModel
from estimator.specs.numerics import Numerics
from estimator.specs.operations import (
    AttentionPath,
    BlockGroup,
    OperationKind,
    OperationList,
    ParameterKind,
    ParameterTensor,
)

from .assembly import Places, Point, fit_or_constant, operations_of
from .blocks import Block, find_blocks, shorten
from .compiled_variant import compiled_operations_of, context_of
from .failures import TraceError, UnequalTracesError
from .single_trace import FakeCopy, Run, Trace, trace_once
from .subject import Subject

SHORT, LONG = 2, 4
"""Blocks per group in the two copies."""
_BATCHES = (2, 3)
"""Not 1: a dimension of one makes copies vanish that a larger batch needs."""
_CHECK_BATCH = 5
_BASE_LENGTH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """How much is traced: how short a copy, at which lengths."""

    is_shortened: bool
    base_length: int
    num_lengths: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copies:
    """A short and a longer copy of a model."""

    short: FakeCopy
    short_position: Mapping[str, Block]
    long: FakeCopy
    long_position: Mapping[str, Block]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Variant:
    """Traces of one variant and what they add up to."""

    list: OperationList
    compiled: OperationList
    cast_parameters: frozenset[str]
    embeddings: frozenset[str]


def trace_model(
    subject: Subject,
    *,
    attentions: tuple[str, ...],
    check_length: int | None,
    source: str,
    progress: Callable[[str], None] = lambda phase: None,
    numerics: tuple[Numerics, ...] = tuple(Numerics),
) -> TracedModel:
    """Every variant of ``numerics`` and ``attentions`` (``sdpa``: the fused kernel; ``eager``).

    AUTOCAST must be among them: its casts tell what kind each parameter is.
    """
    progress("building")
    full = subject.build(attentions[0])
    blocks = find_blocks(full)
    parameters = _Parameters(full, blocks)
    variants: dict[str, OperationList] = {}
    plan: _Plan | None = None
    for attention in attentions:
        if attention == "eager" and variants and not _has_fused_attention(variants):
            break  # the model knows no other attention than what was traced already
        model = full if attention == attentions[0] else subject.build(attention)
        tracer = _Tracer(subject, model, blocks, check_length)
        for chosen in sorted(numerics, key=lambda value: value is not Numerics.AUTOCAST):
            path = _attention_path(attention, chosen)
            progress(f"tracing {chosen}/{path}")
            variant, plan = tracer.variant(chosen, path, plan)
            if chosen is Numerics.AUTOCAST:
                parameters.learn(variant)
            key = f"{chosen}/{path}"
            variants[key] = replace(variant.list, parameters=parameters.tensors)
            variants[f"{key}/compiled"] = replace(variant.compiled, parameters=parameters.tensors)
    return TracedModel(
        name=subject.name,
        source=source,
        input_kind=subject.input_kind,
        variants=variants,
        max_position_embeddings=subject.max_position_embeddings,
        image_size=subject.image_size,
        vocab_size=subject.vocab_size,
        provenance=_provenance(subject, _depth(blocks, plan)),
    )


def _attention_path(attention: str, numerics: Numerics) -> AttentionPath:
    if attention == "eager":
        return AttentionPath.MATH
    # The flash kernel knows 16 bit only.
    return AttentionPath.EFFICIENT if numerics is Numerics.FP32 else AttentionPath.FLASH


def _has_fused_attention(variants: Mapping[str, OperationList]) -> bool:
    return any(
        operation.kind is OperationKind.ATTENTION for variant in variants.values() for operation in variant.operations
    )


def _depth(blocks: tuple[Block, ...], plan: _Plan | None) -> str:
    is_deep = any(count > LONG for count in Counter(block.group for block in blocks).values())
    if plan is not None and plan.is_shortened and is_deep:
        return f"extrapolated from {SHORT} and {LONG} blocks of a kind"
    return "traced in full"


def _provenance(subject: Subject, depth: str) -> dict[str, str]:
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    found = {"depth": depth, "class": subject.class_name, "date": today}
    for package in ("torch", "transformers", "traincast"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    if subject.notes:
        found["notes"] = "; ".join(subject.notes)
    return found


class _Parameters:
    """Every parameter of the full model, ties once; what each is used for is learnt from a trace under autocast."""

    def __init__(self, model: nn.Module, blocks: tuple[Block, ...]) -> None:
        places = Places({block.path: block for block in blocks})
        self._counts: Counter[tuple[str | None, str, tuple[int, ...]]] = Counter()
        for name, parameter in model.named_parameters():
            group, place = places.of(name)
            self._counts[group, place, tuple(parameter.shape)] += 1
        self.tensors: tuple[ParameterTensor, ...] = ()

    def learn(self, variant: _Variant) -> None:
        """From the first variant under autocast."""
        if self.tensors:
            return
        self.tensors = tuple(
            ParameterTensor(
                name=name,
                shape=shape,
                kind=_kind(name, shape, variant),
                block=group,
                repeats=count,
                is_tied_matrix=name in variant.embeddings and name in variant.cast_parameters,
            )
            for (group, name, shape), count in self._counts.items()
        )


def _kind(name: str, shape: tuple[int, ...], variant: _Variant) -> ParameterKind:
    if name in variant.embeddings:
        return ParameterKind.EMBEDDING
    if name in variant.cast_parameters:
        return ParameterKind.MATRIX if len(shape) > 1 else ParameterKind.VECTOR
    return ParameterKind.NORM


class _Tracer:
    """Traces variants of one model; a plan that fails gives way to a costlier one."""

    def __init__(self, subject: Subject, model: nn.Module, blocks: tuple[Block, ...], check_length: int | None) -> None:
        self._subject = subject
        self._model = model
        self._blocks = blocks
        self._check_length = check_length
        self._copies: dict[bool, _Copies] = {}

    def variant(self, numerics: Numerics, path: AttentionPath, known: _Plan | None) -> tuple[_Variant, _Plan]:
        """The variant, and the plan that succeeded."""
        plans = self._plans(path)
        if known is not None and known in plans:
            plans = plans[plans.index(known) :]
        failure: UnequalTracesError | None = None
        for plan in plans:
            try:
                return self._trace(numerics, path, plan), plan
            except UnequalTracesError as error:
                failure = error
        raise TraceError(f"traces at different sizes do not agree: {failure}")

    def _plans(self, path: AttentionPath) -> list[_Plan]:
        if self._subject.input_kind == "images":
            return [_Plan(is_shortened=flag, base_length=1, num_lengths=1) for flag in (True, False)]
        longest = self._subject.longest_length or 8 * _BASE_LENGTH
        base = max(2, min(_BASE_LENGTH, longest // 4))
        # Scores of eager attention grow with the square of the length.
        first = 3 if path is AttentionPath.MATH else 2
        plans = [_Plan(is_shortened=True, base_length=base, num_lengths=count) for count in range(first, 4)]
        plans.append(_Plan(is_shortened=False, base_length=base, num_lengths=3))
        return plans

    def _trace(self, numerics: Numerics, path: AttentionPath, plan: _Plan) -> _Variant:
        copies = self._copies_for(plan.is_shortened)
        lengths = [plan.base_length * (number + 1) for number in range(plan.num_lengths)]
        traces: dict[Point, Trace] = {}
        for length in lengths:
            for batch in _BATCHES:
                run = Run(numerics=numerics, attention=path, micro_batch_size=batch, sequence_length=length)
                traces[batch, length] = self._once(copies.short, copies.short_position, run)
            _refuse_loops(traces)
        check = (_CHECK_BATCH, self._length_to_check(plan))
        run = Run(numerics=numerics, attention=path, micro_batch_size=check[0], sequence_length=check[1])
        longer = self._once(copies.long, copies.long_position, run)
        num_blocks = Counter(block.group for block in self._blocks)
        operations = operations_of(traces, copies.short_position, (check, longer, copies.long_position), num_blocks)
        places = Places(copies.short_position)
        first = next(iter(traces.values()))
        eager = OperationList(
            operations=operations,
            blocks=self._block_groups(traces, copies.short_position, num_blocks),
            parameters=(),
            input_bytes=fit_or_constant({point: trace.input_bytes for point, trace in traces.items()}),
        )
        compiled = compiled_operations_of(traces, copies.short_position, num_blocks, context_of(numerics, path))
        return _Variant(
            list=eager,
            compiled=replace(eager, operations=compiled),
            cast_parameters=frozenset(places.of(name)[1] for name in first.cast_parameters),
            embeddings=frozenset(places.of(name)[1] for name in first.embeddings),
        )

    def _length_to_check(self, plan: _Plan) -> int:
        if self._subject.input_kind == "images":
            return plan.base_length
        wanted = self._check_length or 4 * plan.base_length
        window = self._subject.sliding_window
        return wanted if window is None or wanted < window else min(4 * plan.base_length, window - 1)

    def _block_groups(
        self, traces: Mapping[Point, Trace], position: Mapping[str, Block], num_blocks: Mapping[str, int]
    ) -> tuple[BlockGroup, ...]:
        first = next(iter(traces.values()))
        present = Counter(block.group for block in position.values())
        classes = {block.group: block.class_name for block in self._blocks}
        return tuple(
            BlockGroup(
                name=group,
                # A block that runs several times (shared weights) counts as often.
                num_blocks=round(num_blocks[group] * calls / present[group]),
                input_bytes=fit_or_constant({point: trace.block_input_bytes[group] for point, trace in traces.items()}),
                class_name=classes[group],
            )
            for group, calls in first.block_calls.items()
        )

    def _once(self, model: FakeCopy, position: Mapping[str, Block], run: Run) -> Trace:
        subject = self._subject
        return trace_once(
            model, position, run, inputs=subject.inputs, loss=subject.loss, vocab_size=subject.vocab_size
        )

    def _copies_for(self, is_shortened: bool) -> _Copies:
        if is_shortened not in self._copies:
            long = copy.deepcopy(self._model)
            if not is_shortened:
                position = {block.path: block for block in self._blocks}
                whole = FakeCopy(long)
                self._copies[is_shortened] = _Copies(
                    short=whole, short_position=position, long=whole, long_position=position
                )
            else:
                long_position = shorten(long, self._blocks, LONG)
                short = copy.deepcopy(long)
                left = tuple(replace(block, path=path) for path, block in long_position.items())
                short_position = shorten(short, left, SHORT)
                self._copies[is_shortened] = _Copies(
                    short=FakeCopy(short),
                    short_position=short_position,
                    long=FakeCopy(long),
                    long_position=long_position,
                )
        return self._copies[is_shortened]


def _refuse_loops(traces: Mapping[Point, Trace]) -> None:
    """A loop over the tokens in Python: no list of operations holds at every length."""
    counts = {length: len(trace.operations) for (_, length), trace in traces.items()}
    shortest, longest = min(counts), max(counts)
    if counts[longest] <= 1.2 * counts[shortest]:
        return
    paths = Counter(operation.path for operation in next(reversed(traces.values())).operations)
    busiest = paths.most_common(1)[0][0]
    raise TraceError(
        f"the number of operations grows with the length ({counts[shortest]} at {shortest} tokens, {counts[longest]} "
        f"at {longest}): module {busiest} loops over the tokens in Python, as slow paths of state-space and recurrent "
        "layers do where a GPU would run one fused scan; such a trace would say nothing about that kernel. "
        "Mamba is known without a trace: give its config to --model directly"
    )
