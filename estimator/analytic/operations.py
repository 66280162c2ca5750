"""The operation list of any model: closed forms by family, or the variant of a trace."""

from functools import lru_cache

from ..specs.errors import SpecError
from ..specs.model import ModelSpec
from ..specs.models.convnext import ConvNextSpec
from ..specs.models.decoder import DecoderSpec
from ..specs.models.encoder import EncoderSpec
from ..specs.models.mamba import MambaSpec
from ..specs.models.traced import TracedModel
from ..specs.models.vision import VisionTransformerSpec
from ..specs.operations import AttentionPath, OperationContext, OperationList
from .architectures import convnext, decoder, encoder, mamba, vision


@lru_cache(maxsize=1024)
def operation_list(model: ModelSpec, context: OperationContext) -> OperationList:
    """Everything one micro batch of a model runs in one variant (numerics, attention kernel, compile)."""
    match model:
        case DecoderSpec():
            return decoder.operation_list(model, context)
        case EncoderSpec():
            return encoder.operation_list(model, context)
        case VisionTransformerSpec():
            return vision.operation_list(model, context)
        case ConvNextSpec():
            return convnext.operation_list(model, context)
        case MambaSpec():
            return mamba.operation_list(model, context)
        case TracedModel():
            return _traced(model, context)


def _traced(model: TracedModel, context: OperationContext) -> OperationList:
    """The variant that was traced for these numerics and this attention; else the nearest attention kernel."""
    wanted = context.attention.value
    fused = [path.value for path in (AttentionPath.FLASH, AttentionPath.EFFICIENT, AttentionPath.CUDNN)]
    plain = [path.value for path in (AttentionPath.MATH, AttentionPath.SDPA_MATH)]
    order = [wanted, *(fused if wanted in fused else plain), *fused, *plain]
    suffixes = ("/compiled", "") if context.is_compiled else ("",)
    for attention in order:
        for suffix in suffixes:
            found = model.variants.get(f"{context.numerics}/{attention}{suffix}")
            if found is not None:
                return found
    known = ", ".join(sorted(model.variants)) or "none"
    message = f"{model.name}: the trace holds no variant for {context.numerics}; it holds {known}. Trace it again."
    raise SpecError.of(message, code="variant_missing", field="model")
