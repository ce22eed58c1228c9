"""The Llama architecture in plain PyTorch, with the parameter names of the Hugging Face layout.

RMSNorm before each block, rotary positions (halves rotated, as Hugging Face stores them), grouped-query
attention, SwiGLU. Knows nothing of ranks, data or files.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from groundplane.spec.job import LlamaShape


class Llama(nn.Module):
    """A decoder that predicts the next token.

    Args:
        shape: layers, widths, heads, vocabulary.
        max_positions: longest sequence that is trained.
    """

    def __init__(self, shape: LlamaShape, max_positions: int) -> None:
        super().__init__()
        self.model = Decoder(shape, max_positions)
        self.lm_head = None if shape.tied_embeddings else nn.Linear(shape.hidden, shape.vocab, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Logits of shape (batch, seq, vocab), or with `targets` the mean cross entropy, a float32 scalar.

        Args:
            tokens: int64, shape (batch, seq).
            targets: int64, shape (batch, seq): the token that follows each one.
        """
        hidden = self.model(tokens)
        if self.lm_head is None:
            logits = functional.linear(hidden, self.model.embed_tokens.weight)
        else:
            logits = self.lm_head(hidden)
        if targets is None:
            return logits
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    def initialize(self, seed: int) -> None:
        """Sets every parameter: norms to 1, matrices normal with deviation 0.02, and those that write into
        the residual stream divided by sqrt(2 x layers) (Radford et al., "Language models are unsupervised
        multitask learners", 2019, section 2.3). The same on every rank."""
        generator = torch.Generator().manual_seed(seed)
        residual = 0.02 / (2 * len(self.model.layers)) ** 0.5
        for name, parameter in self.named_parameters():
            if parameter.dim() == 1:
                nn.init.ones_(parameter)
            else:
                deviation = residual if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.02
                nn.init.normal_(parameter, std=deviation, generator=generator)


class Decoder(nn.Module):
    """Embeddings, layers and the last norm: (batch, seq) token ids to (batch, seq, hidden)."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: LlamaShape, max_positions: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList([Layer(shape) for _ in range(shape.layers)])
        self.norm = RmsNorm(shape.hidden, shape.norm_epsilon)
        cos, sin = rotary_tables(shape.hidden // shape.heads, max_positions, shape.rope_theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.embed_tokens(tokens)
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        for layer in self.layers:
            hidden = layer(hidden, cos, sin)
        result: Tensor = self.norm(hidden)
        return result


class Layer(nn.Module):
    """One transformer block; input and output (batch, seq, hidden)."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = Mlp(shape)
        self.input_layernorm = RmsNorm(shape.hidden, shape.norm_epsilon)
        self.post_attention_layernorm = RmsNorm(shape.hidden, shape.norm_epsilon)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), cos, sin)
        result: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return result


class Attention(nn.Module):
    """Causal attention with `kv_heads` shared by `heads` (Ainslie et al., "GQA", 2023)."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.heads, self.kv_heads = shape.heads, shape.kv_heads
        self.head_width = shape.hidden // shape.heads
        self.q_proj = nn.Linear(shape.hidden, shape.heads * self.head_width, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * self.head_width, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * self.head_width, bias=False)
        self.o_proj = nn.Linear(shape.heads * self.head_width, shape.hidden, bias=False)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, seq, _ = hidden.shape
        query = self.q_proj(hidden).view(batch, seq, self.heads, self.head_width).transpose(1, 2)
        key = self.k_proj(hidden).view(batch, seq, self.kv_heads, self.head_width).transpose(1, 2)
        value = self.v_proj(hidden).view(batch, seq, self.kv_heads, self.head_width).transpose(1, 2)
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        mixed = functional.scaled_dot_product_attention(
            query, key, value.to(query.dtype), is_causal=True, enable_gqa=self.heads != self.kv_heads
        )
        result: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, seq, -1))
        return result


class Mlp(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x)) (Shazeer, "GLU variants improve transformer", 2020)."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.down_proj = nn.Linear(shape.ffn, shape.hidden, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        result: Tensor = self.down_proj(functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden))
        return result


class RmsNorm(nn.Module):
    """x / sqrt(mean(x^2) + epsilon) * weight over the last dimension, in float32."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, hidden: Tensor) -> Tensor:
        return functional.rms_norm(hidden.float(), (hidden.shape[-1],), self.weight, self.epsilon)


def rotary_tables(head_width: int, positions: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine of position x theta^(-2i/d), each half repeated, shape (positions, head_width) twice.

    Su et al., "RoFormer", 2021, equation 15.
    """
    frequencies = 1.0 / theta ** (torch.arange(0, head_width, 2, dtype=torch.float32) / head_width)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(values: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates pairs (i, i + width / 2) of the last dimension; `values` is (batch, heads, seq, head_width)."""
    left, right = values.chunk(2, dim=-1)
    return values * cos + torch.cat((-right, left), dim=-1) * sin


def hugging_face_config(shape: LlamaShape, max_positions: int) -> dict[str, Any]:
    """The `config.json` that describes this model to other software, without token ids."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.hidden // shape.heads,
        "vocab_size": shape.vocab,
        "max_position_embeddings": max_positions,
        "rms_norm_eps": shape.norm_epsilon,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": shape.tied_embeddings,
        "attention_bias": False,
        "mlp_bias": False,
        "initializer_range": 0.02,
        "torch_dtype": "float32",
    }
