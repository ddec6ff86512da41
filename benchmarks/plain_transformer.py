"""The transformer that the networks' speed is compared with: the fastest honest form of the usual one.

Pre-norm, causal attention by scaled_dot_product_attention, GELU of four times the width, no biases, learned positions
in place of ages. It knows nothing of time and of same-day events, so it has no mask and no angles to compute.

B subjects, L events, D width, H heads.
"""

from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention


class PlainLayer(nn.Module):
    """x + attention(norm(x)), then x + feed-forward(norm(x)); queries, keys and values by one product."""

    def __init__(self, width: int, n_heads: int) -> None:
        """Make one layer."""
        super().__init__()
        self.n_heads = n_heads
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.qkv_proj = nn.Linear(width, 3 * width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        self.feed_forward_norm = nn.LayerNorm(width, bias=False)
        self.up_proj = nn.Linear(width, 4 * width, bias=False)
        self.down_proj = nn.Linear(4 * width, width, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        """Map rows [B,L,D] to [B,L,D]."""
        projected = self.qkv_proj(self.attention_norm(rows)).view(*rows.shape[:2], 3, self.n_heads, -1)
        queries, keys, values = projected.permute(2, 0, 3, 1, 4)  # [B,H,L,D/H] each
        read = scaled_dot_product_attention(queries, keys, values, is_causal=True)
        rows = rows + self.o_proj(read.transpose(1, 2).flatten(-2))
        update: Tensor = self.down_proj(gelu(self.up_proj(self.feed_forward_norm(rows))))
        return rows + update


class PlainTransformer(nn.Module):
    """Token and position embeddings, layers, a final norm."""

    def __init__(self, n_tokens: int, width: int, n_heads: int, n_layers: int, longest: int) -> None:
        """Draw embeddings from N(0, 0.02²)."""
        super().__init__()
        self.token, self.position = nn.Embedding(n_tokens, width), nn.Embedding(longest, width)
        self.layers = nn.ModuleList(PlainLayer(width, n_heads) for _ in range(n_layers))
        self.final_norm = nn.LayerNorm(width, bias=False)
        for table in (self.token, self.position):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the final hidden states [B,L,D] of tokens [B,L]."""
        rows = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        for layer in self.layers:
            rows = layer(rows)
        hidden: Tensor = self.final_norm(rows)
        return hidden
