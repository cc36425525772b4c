"""FLOPs by walking through every matrix product of a model, sample by sample.

Imports nothing from the package: the oracle beside the closed forms.
"""


def product(rows, inner, columns):
    """FLOPs of [rows, inner] times [inner, columns]."""
    return 2 * rows * inner * columns


def attention(tokens, keys_of, hidden, heads, kv_heads, head_dim):
    flops = product(tokens, hidden, heads * head_dim)  # queries
    flops += 2 * product(tokens, hidden, kv_heads * head_dim)  # keys, values
    for _ in range(heads):
        for token in range(tokens):
            flops += product(1, head_dim, keys_of(token))  # weights
            flops += product(1, keys_of(token), head_dim)  # their sum of values
    return flops + product(tokens, heads * head_dim, hidden)


def mlp(tokens, hidden, intermediate, gated):
    return sum(product(tokens, hidden, intermediate) for _ in range(3 if gated else 2))


def decoder(tokens, layers, hidden, heads, kv_heads, head_dim, intermediate, gated, vocabulary):
    """Every token sees every other: without a causal mask."""
    flops = 0
    for _ in range(layers):
        flops += attention(tokens, lambda _: tokens, hidden, heads, kv_heads, head_dim)
        flops += mlp(tokens, hidden, intermediate, gated)
    return flops + product(tokens, hidden, vocabulary)
