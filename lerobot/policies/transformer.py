"""The transformer of ACT: every attention adds positions to queries and keys, never to values.

Parameter names and shapes are LeRobot's, which are those of `torch.nn.MultiheadAttention` inside.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class LayerSize:
    """What the layers of one transformer share."""

    dim: int
    heads: int
    feedforward: int
    dropout: float
    activation: str
    pre_norm: bool


class Attention(nn.Module):
    """Multi-head attention in as few matrix products as its arguments allow.

    `torch.nn.MultiheadAttention` projects query and key apart even where they are one tensor.
    """

    def __init__(self, size: LayerSize) -> None:
        super().__init__()
        self.heads = size.heads
        self.dropout = size.dropout
        self.in_proj_weight = nn.Parameter(torch.empty(3 * size.dim, size.dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * size.dim))
        self.out_proj = nn.Linear(size.dim, size.dim)
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        """`(b, n, d)` for `query (b, n, d)`, `key` and `value (b, m, d)`; `mask (b, m)` is True where one may look."""
        dim = query.shape[-1]
        if query is key:
            weights, biases = self.in_proj_weight.split([2 * dim, dim]), self.in_proj_bias.split([2 * dim, dim])
            q, k = F.linear(query, weights[0], biases[0]).chunk(2, dim=-1)
        else:
            weights, biases = self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3)
            q, k = F.linear(query, weights[0], biases[0]), F.linear(key, weights[1], biases[1])
        q, k, v = (self._split(x) for x in (q, k, F.linear(value, weights[-1], biases[-1])))
        mask = None if mask is None else mask[:, None, None, :]
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        return self.out_proj(mixed.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        """`(b, n, d)` to `(b, heads, n, d / heads)`."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class _Layer(nn.Module):
    """Residual blocks around a feed-forward network, normalised after each (as in the paper) or before each."""

    def __init__(self, size: LayerSize) -> None:
        super().__init__()
        self.self_attn = Attention(size)
        self.activation = {"relu": F.relu, "gelu": F.gelu}[size.activation]
        self.dropout = nn.Dropout(size.dropout)
        self.pre_norm = size.pre_norm

    def _feedforward_modules(self, size: LayerSize) -> None:
        # After the attentions: an optimizer's state refers to parameters by their order, and LeRobot's is this.
        self.linear1 = nn.Linear(size.dim, size.feedforward)
        self.linear2 = nn.Linear(size.feedforward, size.dim)

    def _residual(self, tokens: Tensor, norm: nn.LayerNorm, block: Callable[[Tensor], Tensor]) -> Tensor:
        if self.pre_norm:
            return tokens + self.dropout(block(norm(tokens)))
        return norm(tokens + self.dropout(block(tokens)))

    def _feedforward(self, tokens: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(tokens))))


class EncoderLayer(_Layer):
    """Self-attention and a feed-forward network."""

    def __init__(self, size: LayerSize) -> None:
        super().__init__(size)
        self._feedforward_modules(size)
        self.norm1 = nn.LayerNorm(size.dim)
        self.norm2 = nn.LayerNorm(size.dim)

    def forward(self, tokens: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        """`(b, n, d)` tokens to the same; `positions` broadcasts to them."""

        def look(x: Tensor) -> Tensor:
            placed = x + positions
            return self.self_attn(placed, placed, x, mask)

        return self._residual(self._residual(tokens, self.norm1, look), self.norm2, self._feedforward)


class DecoderLayer(_Layer):
    """Self-attention, attention to what was observed, and a feed-forward network."""

    def __init__(self, size: LayerSize) -> None:
        super().__init__(size)
        self.multihead_attn = Attention(size)
        self._feedforward_modules(size)
        self.norm1 = nn.LayerNorm(size.dim)
        self.norm2 = nn.LayerNorm(size.dim)
        self.norm3 = nn.LayerNorm(size.dim)

    def forward(self, tokens: Tensor, positions: Tensor, memory: Tensor, placed_memory: Tensor) -> Tensor:
        """`(b, k, d)` tokens to the same; `placed_memory` is `memory (b, n, d)` with its positions added."""

        def look(x: Tensor) -> Tensor:
            placed = x + positions
            return self.self_attn(placed, placed, x)

        def observe(x: Tensor) -> Tensor:
            return self.multihead_attn(x + positions, placed_memory, memory)

        tokens = self._residual(tokens, self.norm1, look)
        tokens = self._residual(tokens, self.norm2, observe)
        return self._residual(tokens, self.norm3, self._feedforward)


class Encoder(nn.Module):
    """A stack of encoder layers."""

    def __init__(self, size: LayerSize, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(size) for _ in range(num_layers))
        self.norm = nn.LayerNorm(size.dim) if size.pre_norm else nn.Identity()

    def forward(self, tokens: Tensor, positions: Tensor, mask: Tensor | None = None) -> Tensor:
        """`(b, n, d)` tokens to the same; `mask (b, n)` is True at tokens that may be looked at."""
        for layer in self.layers:
            tokens = layer(tokens, positions, mask)
        return self.norm(tokens)


class Decoder(nn.Module):
    """A stack of decoder layers."""

    def __init__(self, size: LayerSize, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(size) for _ in range(num_layers))
        self.norm = nn.LayerNorm(size.dim)

    def forward(self, tokens: Tensor, positions: Tensor, memory: Tensor, memory_positions: Tensor) -> Tensor:
        """`(b, k, d)` tokens to the same, having looked at `memory (b, n, d)`."""
        placed_memory = memory + memory_positions
        for layer in self.layers:
            tokens = layer(tokens, positions, memory, placed_memory)
        return self.norm(tokens)


def sinusoids(positions: Tensor, dim: int) -> Tensor:
    """`(n,)` positions to `(n, dim)`: sine and cosine in turn, wavelengths from 2 pi to 20,000 pi.

    Vaswani et al. 2017, section 3.5. Computed in float64, as float32.
    """
    wavelengths = 10_000 ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = positions.double()[:, None] / wavelengths
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).float()


def grid_sinusoids(height: int, width: int, dim: int) -> Tensor:
    """`(height * width, dim)`: the first half of `dim` tells the row, the second the column, each scaled to 2 pi.

    The positional encoding of DETR (Carion et al. 2020), which ACT takes over.
    """
    rows, columns = (sinusoids(2 * math.pi * torch.arange(1, n + 1) / n, dim // 2) for n in (height, width))
    grid = [rows[:, None].expand(-1, width, -1), columns[None].expand(height, -1, -1)]
    return torch.cat(grid, dim=-1).flatten(0, 1)
