"""Parameter counts equal transformers' own, to the last one."""

import json
from pathlib import Path

import pytest

from estimator.analytic.architectures import convnext, encoder, mamba, vision
from estimator.catalog.families import convnext as convnext_config
from estimator.catalog.families import encoder as encoder_config
from estimator.catalog.families import mamba as mamba_config
from estimator.catalog.families import vision as vision_config

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
FAMILIES = {
    "BertForMaskedLM": (encoder_config, encoder),
    "BertForPreTraining": (encoder_config, encoder),
    "RobertaForMaskedLM": (encoder_config, encoder),
    "ViTForImageClassification": (vision_config, vision),
    "DeiTForImageClassification": (vision_config, vision),
    "Dinov2ForImageClassification": (vision_config, vision),
    "ConvNextForImageClassification": (convnext_config, convnext),
    "ConvNextV2ForImageClassification": (convnext_config, convnext),
    "MambaForCausalLM": (mamba_config, mamba),
}
CASES = [
    ("bert-base-uncased", "BertForMaskedLM", {}),
    ("bert-large-uncased", "BertForMaskedLM", {}),
    ("bert-base-uncased", "BertForMaskedLM", {"tie_word_embeddings": False}),
    ("bert-pretraining-small", "BertForPreTraining", {}),
    ("roberta-base", "RobertaForMaskedLM", {}),
    ("roberta-large", "RobertaForMaskedLM", {}),
    ("roberta-base", "RobertaForMaskedLM", {"tie_word_embeddings": False}),
    ("vit-base-patch16-224", "ViTForImageClassification", {}),
    ("vit-base-patch16-224", "ViTForImageClassification", {"qkv_bias": False, "image_size": [384, 384]}),
    ("vit-large-patch16-224-21k", "ViTForImageClassification", {}),
    ("deit-small-patch16-224", "DeiTForImageClassification", {}),
    ("dinov2-base", "Dinov2ForImageClassification", {}),
    ("dinov2-base", "Dinov2ForImageClassification", {"use_mask_token": False}),
    ("dinov2-giant", "Dinov2ForImageClassification", {}),
    ("convnext-tiny-224", "ConvNextForImageClassification", {}),
    ("convnext-tiny-224", "ConvNextForImageClassification", {"layer_scale_init_value": 0.0}),
    ("convnext-large-22k", "ConvNextForImageClassification", {}),
    ("convnextv2-base", "ConvNextV2ForImageClassification", {}),
    ("mamba-130m", "MambaForCausalLM", {}),
    ("mamba-130m", "MambaForCausalLM", {"use_bias": True, "use_conv_bias": False, "tie_word_embeddings": False}),
    ("mamba-2.8b", "MambaForCausalLM", {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "model_class", "overrides"), CASES)
def test_parameter_count_equals_transformers(name: str, model_class: str, overrides: dict[str, object]) -> None:
    import transformers

    from tests.support.fake_models import num_parameters

    config = {**json.loads((CONFIGS / f"{name}.json").read_text()), **overrides}
    reader, architecture = FAMILIES[model_class]
    spec, _ = reader.read(config, name=name, source="test")
    tensors = architecture.parameter_tensors(spec)
    counted = sum(tensor.num_elements * tensor.repeats for tensor in tensors)
    assert counted == num_parameters(getattr(transformers, model_class), config)
