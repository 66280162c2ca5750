"""Model FLOPs belong to the model, not to how it is run."""

import pytest

from estimator.app.session.options import WorkloadOptions
from estimator.app.session.service import Session


@pytest.mark.parametrize("model", ["pythia-1b", "tinyllama-1.1b", "opt-1.3b", "bert-large-uncased", "vit-large-16-21k"])
def test_model_flops_do_not_depend_on_kernels_precision_or_strategy(model: str) -> None:
    counted = {
        Session()
        .estimate(
            WorkloadOptions(
                model=model, gpu="h100-sxm", num_gpus=2, micro_batch_size=2, global_batch_size=8, attention=attention,
                compile=is_compiled, precision=precision, strategy=strategy,
                activation_checkpointing=strategy == "zero_3",
            )
        )
        .estimate.model_flops_per_step
        for attention in ("sdpa", "eager", "flash_attention_2")
        for is_compiled in (False, True)
        for precision in ("bf16", "fp32")
        for strategy in ("none", "zero_3")
    }  # fmt: skip
    assert max(counted) == pytest.approx(min(counted), rel=1e-9)
