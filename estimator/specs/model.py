"""The union of everything that can be estimated."""

from .models.convnext import ConvNextSpec
from .models.decoder import DecoderSpec
from .models.encoder import EncoderSpec
from .models.mamba import MambaSpec
from .models.traced import TracedModel
from .models.vision import VisionTransformerSpec

ModelSpec = DecoderSpec | EncoderSpec | VisionTransformerSpec | ConvNextSpec | MambaSpec | TracedModel
