"""How many parameters of models by name are published, and where."""

PUBLISHED = {
    "qwen2-7b": 7_610_000_000,  # of the same shape, in the model card Qwen2.5-7B (2024)
    "qwen2-72b": 72_710_000_000,  # blog post Hello Qwen2 (2024)
    "llama-3-8b": 8_030_000_000,  # model card Meta-Llama-3-8B (2024)
    "llama-3-70b": 70_600_000_000,  # model card Meta-Llama-3-70B (2024)
    "internvit-300m": 304_000_000,  # model card InternViT-300M-448px (2024)
    "internvit-6b": 5_540_000_000,  # model card InternViT-6B-448px-V1-5 (2024)
    "qwen2-vl-vit": 675_000_000,  # Qwen2-VL (2024), table 1
    "whisper-large-v3-encoder": 637_000_000,  # the encoder's tensors in the model card whisper-large-v3 (2023)
}
