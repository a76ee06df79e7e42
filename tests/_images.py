"""Small images whose class is easy to see, in MNIST's files, and a recipe for them."""

import struct
from pathlib import Path

import numpy as np

RECIPE = """\
name: digits
model: {family: vit, image_size: 8, patch_size: 4, num_channels: 1, hidden_size: 16, num_layers: 2,
  num_heads: 2, intermediate_size: 32, dropout: 0.1}
data: {train: {files: [FOLDER/a-images-idx3-ubyte, FOLDER/a-labels-idx1-ubyte]},
  valid: {files: [FOLDER/b-images-idx3-ubyte, FOLDER/b-labels-idx1-ubyte]}}
objective: {name: image_classification}
train: {steps: 30, tokens_per_step: 100, tokens_per_batch: 50, lr: 1.0e-2, warmup_steps: 2,
  precision: fp32, eval_every: 10, save_every: 10,
  schedule: constant}
"""


def write_idx(folder: Path, name: str, images: np.ndarray, labels: np.ndarray) -> None:
    """Write images and labels as MNIST has them."""
    header = struct.pack(">IIII", 2051, *images.shape)
    (folder / f"{name}-images-idx3-ubyte").write_bytes(header + images.tobytes())
    header = struct.pack(">II", 2049, len(labels))
    (folder / f"{name}-labels-idx1-ubyte").write_bytes(header + labels.tobytes())


def quarters(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return noise (count, 8, 8) with one bright quarter, and which quarter that is."""
    draw = np.random.default_rng(seed)
    images = draw.integers(0, 60, (count, 8, 8), np.uint8)
    labels = draw.integers(0, 4, count).astype(np.uint8)
    for image, label in zip(images, labels, strict=True):
        top, left = 4 * (label // 2), 4 * (label % 2)
        image[top : top + 4, left : left + 4] += 150
    return images, labels


def write(folder: Path) -> Path:
    """Write 80 training and 30 held-out images and their recipe; return the recipe's path."""
    write_idx(folder, "a", *quarters(80, 0))
    write_idx(folder, "b", *quarters(30, 1))
    path = folder / "digits.yaml"
    path.write_text(RECIPE.replace("FOLDER", str(folder)), encoding="utf-8")
    return path
