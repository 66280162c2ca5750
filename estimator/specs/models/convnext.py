"""ConvNeXt."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvNextSpec:
    """A convolutional image classifier in stages. Hugging Face spellings."""

    name: str
    model_type: str
    """``convnext`` or ``convnextv2``."""
    source: str
    image_size: int
    num_channels: int
    patch_size: int
    hidden_sizes: tuple[int, ...]
    depths: tuple[int, ...]
    num_labels: int
    activation: str = "gelu"
    has_layer_scale: bool = True
    has_global_response_norm: bool = False
    """ConvNeXt V2."""
    drop_path_rate: float = 0.0

    @property
    def family(self) -> str:
        return "convnext"

    def side_of_stage(self, stage: int) -> int:
        """Pixels per side of the feature maps of a stage: the stem divides by the patch, later stages halve."""
        return self.image_size // self.patch_size >> stage
