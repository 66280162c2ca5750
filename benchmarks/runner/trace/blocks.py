"""Finds the equal blocks of a model (transformer layers, ConvNeXt blocks) and makes shallower copies of it."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

_INDEX_NAME = re.compile(r"(^|_)(idx|index|id|number)$")
_CONTAINERS = (nn.ModuleList, nn.Sequential)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block of a full model."""

    path: str
    group: str
    class_name: str

    @property
    def container(self) -> str:
        return self.path.rpartition(".")[0]

    @property
    def index(self) -> str:
        return self.path.rpartition(".")[2]


def find_blocks(model: nn.Module) -> tuple[Block, ...]:
    """What activation checkpointing and sharding wrap one by one, outermost, in order; grouped where equal.

    transformers marks its blocks by a base class; in other models they are the elements of the lists of composite
    modules of one class. Blocks are equal when their classes, parameter shapes and switches are.
    """
    paths = list(_marked_blocks(model)) or list(_listed_blocks(model))
    names: dict[tuple[str, Any], str] = {}
    blocks = []
    for path in paths:
        module = model.get_submodule(path)
        container, _, index = path.rpartition(".")
        pattern = (f"{container}.*" if container else "*") if index.isdigit() else path
        key = (pattern, _signature(module))
        if key not in names:
            count = sum(1 for known, _ in names if known == pattern)
            names[key] = pattern if count == 0 else f"{pattern}({count + 1})"
        blocks.append(Block(path=path, group=names[key], class_name=type(module).__name__))
    return tuple(blocks)


def _marked_blocks(model: nn.Module) -> Iterator[str]:
    found: list[str] = []
    for path, module in model.named_modules():
        is_marked = any(base.__name__ == "GradientCheckpointingLayer" for base in type(module).__mro__)
        if is_marked and not any(path.startswith(outer + ".") for outer in found):
            found.append(path)
            yield path


def _listed_blocks(model: nn.Module) -> Iterator[str]:
    found: list[str] = []
    for path, module in model.named_modules():
        if not isinstance(module, _CONTAINERS) or len(module) < 2:
            continue
        if any(path == outer or path.startswith(outer + ".") for outer in found):
            continue
        children = list(module)
        is_equal = len({type(child) for child in children}) == 1
        if is_equal and any(True for _ in children[0].children()) and any(True for _ in children[0].parameters()):
            for index in range(len(children)):
                found.append(f"{path}.{index}" if path else str(index))
                yield found[-1]


def _signature(module: nn.Module) -> tuple[Any, ...]:
    """What decides which operations a module runs; layer numbers do not, a rate only by being zero or not."""
    switches = []
    for name, value in sorted(vars(module).items()):
        if name.startswith("_") or _INDEX_NAME.search(name):
            continue
        if isinstance(value, float):
            switches.append((name, value != 0))
        elif isinstance(value, (bool, int, str, type(None))):
            switches.append((name, value))
        elif isinstance(value, (tuple, list)) and all(isinstance(item, (int, float, str)) for item in value):
            switches.append((name, tuple(value)))
    shapes = tuple((name, tuple(parameter.shape)) for name, parameter in module.named_parameters(recurse=False))
    children = tuple((name, _signature(child)) for name, child in module.named_children())
    return (type(module).__name__, tuple(switches), shapes, children)


def shorten(model: nn.Module, blocks: tuple[Block, ...], blocks_per_group: int) -> dict[str, Block]:
    """Keep the first ``blocks_per_group`` blocks of each group in lists, in place, and say which block lies where.

    Configs that hold one entry per layer (``layer_types``) lose the same entries.
    """
    position: dict[str, Block] = {}
    by_container: dict[str, list[Block]] = {}
    for block in blocks:
        by_container.setdefault(block.container, []).append(block)
    for container, members in by_container.items():
        parent = model.get_submodule(container) if container else model
        if not isinstance(parent, _CONTAINERS) or len(parent) != len(members):
            position.update({block.path: block for block in members})
            continue
        taken: Counter[str] = Counter()
        kept = []
        for block in members:
            taken[block.group] += 1
            if taken[block.group] <= blocks_per_group:
                kept.append(block)
        if len(kept) < len(members):
            _shorten_configs(model, len(members), [int(block.index) for block in kept])
            modules = [model.get_submodule(block.path) for block in kept]
            parent._modules.clear()
            parent._modules.update({str(number): module for number, module in enumerate(modules)})
        prefix = f"{container}." if container else ""
        position.update({f"{prefix}{number}": block for number, block in enumerate(kept)})
    return position


def _shorten_configs(model: nn.Module, num_blocks: int, kept: list[int]) -> None:
    configs = {id(config): config for module in model.modules() if (config := getattr(module, "config", None))}
    for config in configs.values():
        for name, value in list(vars(config).items()):
            if isinstance(value, list) and len(value) == num_blocks:
                vars(config)[name] = [value[index] for index in kept]
            elif name in ("num_hidden_layers", "n_layer") and value == num_blocks:
                vars(config)[name] = len(kept)
