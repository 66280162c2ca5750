"""The runner, with one rank that runs out of memory in its third micro step."""

import os
import sys
from typing import Any

import torch

from benchmarks.runner import __main__ as runner
from benchmarks.runner.engine_torch import TorchEngine

_original = TorchEngine.micro_step
_calls = [0]


def _micro_step(self: TorchEngine, batch: Any, **arguments: Any) -> None:
    _calls[0] += 1
    if os.environ.get("RANK", "0") == os.environ["FAILING_RANK"] and _calls[0] == 3:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    _original(self, batch, **arguments)


TorchEngine.micro_step = _micro_step
code = runner.main(sys.argv[1:])
sys.stderr.flush()
os._exit(code)
