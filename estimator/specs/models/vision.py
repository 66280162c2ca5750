"""Vision transformers: ViT, DeiT-like, DINOv2."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionTransformerSpec:
    """An image classifier of equal pre-norm blocks. Hugging Face spellings."""

    name: str
    model_type: str
    """``vit``, ``deit`` or ``dinov2``."""
    source: str
    image_size: int
    patch_size: int
    num_channels: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    num_labels: int
    position_image_size: int
    """Image size for which the learned position table was made (DINOv2: 518)."""
    has_qkv_bias: bool = True
    activation: str = "gelu"
    is_mlp_gated: bool = False
    """DINOv2-giant's SwiGLU."""
    has_layer_scale: bool = False
    has_mask_token: bool = False
    num_prefix_tokens: int = 1
    """Class token; DeiT: and a distillation token."""
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    drop_path_rate: float = 0.0

    @property
    def family(self) -> str:
        return "vision"

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def num_patches(self) -> int:
        """Patches of one image; pixels beyond the last whole patch are not seen."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def num_positions(self) -> int:
        """Rows of the learned position table."""
        return (self.position_image_size // self.patch_size) ** 2 + self.num_prefix_tokens

    @property
    def num_tokens(self) -> int:
        """Length of the sequence that the blocks see."""
        return self.num_patches + self.num_prefix_tokens
