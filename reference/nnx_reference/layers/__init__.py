"""Layers: what models are made of. Nothing else in this package needs them.

initialization.py   How parameters get their first value.
promotion.py        In which dtype a layer computes.
modes.py            What a layer does differently while it is trained.
linear.py           Linear: an affine map.
lora.py             LoRA, LoRALinear: a low-rank change of another map.
normalization.py    BatchNorm.
dropout.py          Dropout.
sequence.py         Sequential: one after the other.
"""

from nnx_reference.layers.dropout import Dropout
from nnx_reference.layers.linear import Linear
from nnx_reference.layers.lora import LoRA, LoRALinear
from nnx_reference.layers.normalization import BatchNorm
from nnx_reference.layers.sequence import Sequential

__all__ = ["BatchNorm", "Dropout", "Linear", "LoRA", "LoRALinear", "Sequential"]
