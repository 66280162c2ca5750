"""ConvNeXt."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvNextSpec:
    """A convolutional image classifier in four stages. Hugging Face spellings."""

    name: str
    model_type: str
    source: str
    image_size: int
    num_channels: int
    patch_size: int
    hidden_sizes: tuple[int, ...]
    depths: tuple[int, ...]
    num_labels: int
    has_layer_scale: bool = True
    drop_path_rate: float = 0.0

    @property
    def family(self) -> str:
        return "convnext"
