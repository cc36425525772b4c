"""FLOPs against ``torch.utils.flop_counter`` on scaled-down models, forward, backward and with checkpointing."""

import pytest
from shapes_of import attention_of, decoder_of, mixture_of, vision_of

from balancer.cost.hf_config import modules_of
from balancer.cost.parts import Part, projector
from balancer.cost.parts import linear as matrix
from balancer.cost.shapes import Decoder

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

HIDDEN, HEADS, HEAD_DIM, INTERMEDIATE, LAYERS = 32, 4, 6, 40, 3


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


class TorchAttention(nn.Module):
    """Products spelled out: fused kernels are counted differently."""

    def __init__(self, kv_heads, window=None):
        super().__init__()
        self.kv_heads, self.window = kv_heads, window
        self.queries, self.output = linear(HIDDEN, HEADS * HEAD_DIM), linear(HEADS * HEAD_DIM, HIDDEN)
        self.keys, self.values = (linear(HIDDEN, kv_heads * HEAD_DIM) for _ in range(2))

    def forward(self, x):
        windows = x.reshape(-1, self.window or x.shape[1], HIDDEN)
        rows, tokens, _ = windows.shape

        def split(y, heads):
            y = y.reshape(rows, tokens, heads, HEAD_DIM).transpose(1, 2)
            return y.repeat_interleave(HEADS // heads, dim=1).reshape(rows * HEADS, tokens, HEAD_DIM)

        queries = split(self.queries(windows), HEADS)
        keys, values = (split(project(windows), self.kv_heads) for project in (self.keys, self.values))
        seen = torch.softmax(queries @ keys.transpose(1, 2), dim=-1) @ values
        seen = seen.reshape(rows, HEADS, tokens, HEAD_DIM).transpose(1, 2).reshape(rows, tokens, -1)
        return self.output(seen).reshape(x.shape)


class TorchMlp(nn.Module):
    def __init__(self, gated, intermediate=INTERMEDIATE):
        super().__init__()
        self.up, self.down = linear(HIDDEN, intermediate), linear(intermediate, HIDDEN)
        self.gate = linear(HIDDEN, intermediate) if gated else None

    def forward(self, x):
        up = self.up(x)
        return self.down(up if self.gate is None else up * torch.sigmoid(self.gate(x)))


class TorchExperts(nn.Module):
    """Every token to two of four experts, in turn, so that counts come out even."""

    def __init__(self):
        super().__init__()
        self.router = linear(HIDDEN, 4)
        self.experts = nn.ModuleList(TorchMlp(True) for _ in range(4))

    def forward(self, x):
        weights = torch.softmax(self.router(x), dim=-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            mine = slice(i % 2, None, 2)
            out[:, mine] = out[:, mine] + weights[:, mine, i : i + 1] * expert(x[:, mine])
        return out


class TorchBlock(nn.Module):
    def __init__(self, kv_heads=HEADS, gated=False, window=None, mlp=None):
        super().__init__()
        self.attention, self.mlp = TorchAttention(kv_heads, window), mlp or TorchMlp(gated)

    def forward(self, x):
        x = x + self.attention(x)
        return x + self.mlp(x)


def counted(model, x, backward=False):
    x = x.requires_grad_()  # or the first layer's backward would be half a one
    with FlopCounterMode(display=False) as counter:
        out = model(x)
        if backward:
            out.sum().backward()
    return counter.get_total_flops()


def heads_of(kv_heads=HEADS):
    return attention_of(HIDDEN, HEADS, kv_heads, HEAD_DIM)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("tokens", [1, 24, 57])
def test_decoder(kv_heads, gated, tokens):
    model = nn.Sequential(*(TorchBlock(kv_heads, gated) for _ in range(LAYERS)), linear(HIDDEN, 100))
    shape = decoder_of(heads_of(kv_heads), LAYERS, 100, tied=True, width=INTERMEDIATE, gated=gated)
    x = torch.randn(1, tokens, HIDDEN)
    assert shape.flops(backward=False).exact(tokens) == counted(model, x)
    assert shape.flops().exact(tokens) == counted(model, x, backward=True)
    matrices = sum(p.numel() for p in model.parameters())
    assert shape.parameters - LAYERS * 2 * HIDDEN == matrices  # without norms; the head's matrix, once


def test_mixture_of_experts():
    model = nn.Sequential(*(TorchBlock(2, mlp=TorchExperts()) for _ in range(LAYERS)), linear(HIDDEN, 100))
    layer = mixture_of(heads_of(2), INTERMEDIATE, 4, 2)
    shape = Decoder.of(heads_of(2), (layer,) * LAYERS, 100, tied=True)
    x = torch.randn(1, 24, HIDDEN)
    assert shape.flops(backward=False).exact(24) == counted(model, x)
    assert shape.flops().exact(24) == counted(model, x, backward=True)
    assert shape.parameters == sum(p.numel() for p in model.parameters())


def test_checkpointing():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(TorchBlock(2, True) for _ in range(LAYERS))

        def forward(self, x):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return x

    shape = vision_of(heads_of(2), matrix(1, HIDDEN), LAYERS, width=INTERMEDIATE)
    embedding = shape.flops(checkpointing=True).exact(24) - counted_embedding(24)
    with set_checkpoint_early_stop(False):
        assert embedding == counted(Checkpointed(), torch.randn(1, 24, HIDDEN), backward=True)


def counted_embedding(tokens):
    return 4 * 2 * tokens * HIDDEN  # of patches of one value, which the blocks alone do not have


class TorchVision(nn.Module):
    def __init__(self, class_tokens, window, full_layers, gated=False):
        super().__init__()
        self.patches = nn.Conv2d(3, HIDDEN, kernel_size=4, stride=4)
        self.classes = nn.Parameter(torch.zeros(1, class_tokens, HIDDEN))
        windows = [None if window is None or i < full_layers else window for i in range(LAYERS)]
        self.blocks = nn.Sequential(*(TorchBlock(gated=gated, window=w) for w in windows))
        self.merger = nn.Sequential(nn.Linear(4 * HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, 20))

    def forward(self, image):
        tokens = self.patches(image).flatten(2).transpose(1, 2)
        tokens = self.blocks(torch.cat([self.classes, tokens], dim=1))[:, self.classes.shape[1] :]
        return self.merger(tokens.reshape(1, -1, 4 * HIDDEN))


@pytest.mark.parametrize("class_tokens", [0, 1])
def test_vision_encoder(class_tokens):
    around = matrix(3 * 4 * 4, HIDDEN) + Part(parameters=HIDDEN * (1 + class_tokens)) + projector(
        4, 4 * HIDDEN, 4 * HIDDEN, 20)  # fmt: skip
    shape = vision_of(heads_of(), around, LAYERS, class_tokens, width=INTERMEDIATE, gated=False)
    model = TorchVision(class_tokens, None, 0)
    image = torch.randn(1, 3, 16, 24)
    assert shape.flops(backward=False).exact(24) == counted(model, image)
    assert shape.flops().exact(24) == counted(model, image, backward=True)
    assert shape.parameters - LAYERS * 2 * HIDDEN == sum(p.numel() for p in model.parameters())


SIZES = {"hidden_size": HIDDEN, "head_dim": HEAD_DIM, "num_heads": HEADS, "intermediate_size": INTERMEDIATE}


@pytest.mark.parametrize("full_layers", [0, 1])
def test_windows(full_layers):
    config = {
        "model_type": "qwen2_5_vl_vision", "depth": LAYERS, "patch_size": 4, "temporal_patch_size": 1, "window_size": 8,
        "spatial_merge_size": 2, "out_hidden_size": 20, "fullatt_block_indexes": list(range(full_layers)), **SIZES,
    }  # fmt: skip
    shape = modules_of(config)["vision"]
    image = torch.randn(1, 3, 16, 24)
    model = TorchVision(0, 4, full_layers, gated=True)
    assert shape.flops(backward=False).exact(24) == counted(model, image)
    assert shape.flops().exact(24) == counted(model, image, backward=True)


class TorchAudio(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv1d(10, HIDDEN, kernel_size=3, padding=1)
        self.second = nn.Conv1d(HIDDEN, HIDDEN, kernel_size=3, stride=2, padding=1)
        self.blocks = nn.Sequential(*(TorchBlock() for _ in range(LAYERS)))

    def forward(self, frames):
        return self.blocks(self.second(self.first(frames)).transpose(1, 2))


def test_audio_encoder():
    config = {
        "model_type": "whisper", "d_model": HIDDEN, "head_dim": HEAD_DIM, "encoder_attention_heads": HEADS,
        "encoder_ffn_dim": INTERMEDIATE, "encoder_layers": LAYERS, "num_mel_bins": 10, "max_source_positions": 24,
    }  # fmt: skip
    shape = modules_of(config)["audio"]
    frames = torch.randn(1, 10, 48)
    assert shape.flops(backward=False).exact(48) == counted(TorchAudio(), frames)
    assert shape.flops().exact(48) == counted(TorchAudio(), frames, backward=True)
