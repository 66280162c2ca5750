"""What PyTorch's own partitioner keeps of a compiled model for its backward pass."""

from typing import Any

import torch
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from transformers import AutoConfig


def partitioned_bytes(
    model_class: type, config: dict[str, Any], *, dtype: torch.dtype, micro_batch_size: int, sequence_length: int
) -> int:
    """Bytes that the forward graph hands to the backward graph, parameters and inputs excluded.

    The model is real, so it must be small; the compiled graphs run uncompiled.
    """
    fields = dict(config)
    hf_config = AutoConfig.for_model(fields.pop("model_type"), **fields, use_cache=False)
    hf_config._attn_implementation = "eager"
    model = model_class(hf_config).to(dtype).train()
    kept: list[int] = []

    def partition(joint: Any, inputs: Any, *, num_fwd_outputs: int, **options: Any) -> Any:
        graphs = min_cut_rematerialization_partition(
            joint, inputs, compiler="inductor", num_fwd_outputs=num_fwd_outputs, **options
        )
        (output,) = (node for node in graphs[0].graph.nodes if node.op == "output")
        values = [node.meta["val"] for node in output.args[0][num_fwd_outputs:] if node.op != "placeholder"]
        kept.extend(v.numel() * v.element_size() for v in values if isinstance(v, torch.Tensor))
        return graphs

    def compile_graph(graph: Any, inputs: Any) -> Any:
        return aot_module_simplified(
            graph, inputs, fw_compiler=lambda g, _: g, bw_compiler=lambda g, _: g, partition_fn=partition,
            decompositions=select_decomp_table(),
        )  # fmt: skip

    ids = torch.zeros((micro_batch_size, sequence_length), dtype=torch.long)
    torch.compile(model, backend=compile_graph, fullgraph=True)(input_ids=ids, labels=ids)
    return sum(kept)
