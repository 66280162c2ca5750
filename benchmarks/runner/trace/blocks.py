"""Finds the equal blocks of a model (transformer layers, ConvNeXt blocks) and makes shallower copies of it."""

import re
from collections import Counter
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
    """What activation checkpointing and sharding wrap one by one, in order; grouped where equal.

    transformers marks its blocks by a base class (of nested ones, the inner: Swin's layers, not its stages); in other
    models they are the equal elements of lists. Blocks are equal when their classes, parameter shapes and switches are.
    """
    names: dict[tuple[str, Any], str] = {}
    blocks = []
    for path in _marked_blocks(model) or _listed_blocks(model):
        module = model.get_submodule(path)
        container, _, index = path.rpartition(".")
        pattern = (f"{container}.*" if container else "*") if index.isdigit() else path
        key = (pattern, _signature(module))
        if key not in names:
            count = sum(1 for known, _ in names if known == pattern)
            names[key] = pattern if count == 0 else f"{pattern}({count + 1})"
        blocks.append(Block(path=path, group=names[key], class_name=type(module).__name__))
    return tuple(blocks)


def _marked_blocks(model: nn.Module) -> list[str]:
    marked = [
        path
        for path, module in model.named_modules()
        if any(base.__name__ == "GradientCheckpointingLayer" for base in type(module).__mro__)
    ]
    return [path for path in marked if not any(other.startswith(path + ".") for other in marked)]


def _listed_blocks(model: nn.Module) -> list[str]:
    """Elements of lists of composite modules of one class, at least two of them equal (stages of a convolutional
    network are all different: their layers are the blocks); then also lone elements of those classes."""
    lists = [
        (path, list(module))
        for path, module in model.named_modules()
        if isinstance(module, _CONTAINERS) and _is_list_of_composites(module)
    ]
    chosen: list[str] = []
    classes: set[type] = set()
    for path, elements in lists:
        is_inside = any(path.startswith(outer + ".") for outer in chosen)
        if not is_inside and len({_signature(element) for element in elements}) < len(elements):
            chosen += [f"{path}.{index}" if path else str(index) for index in range(len(elements))]
            classes.add(type(elements[0]))
    lone = {
        f"{path}.{index}" if path else str(index)
        for path, elements in lists
        for index, element in enumerate(elements)
        if type(element) in classes
    }
    found = {*chosen, *(path for path in lone if not any(path.startswith(outer + ".") for outer in chosen))}
    return [path for path, _ in model.named_modules() if path in found]


def _is_list_of_composites(module: nn.Module) -> bool:
    children = list(module.children())
    return (
        len({type(child) for child in children}) == 1
        and any(True for _ in children[0].children())
        and any(True for _ in children[0].parameters())
    )


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
