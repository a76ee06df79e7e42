"""A recipe of an encoder with objectives that `nlpkit selftest` is tried on."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from accelerate.state import AcceleratorState

from nlpkit import recipe, selftest
from nlpkit.objectives.several.combined import combine
from nlpkit.selftest import batching, leaks, texts
from nlpkit.selftest.subject import Bench
from nlpkit.train.log import QUIET, Log
from nlpkit.train.signals import StopFlag
from tests import _tiny

PARTS = "tests.parts.proofs_"
SHIPPED = ("plm", "reorder")  # the others are parts of their own, as users write them
RECIPE = """\
name: provable
model: MODEL
tokenizer: {kind: bpe, vocab_size: 400}
data: {train: [TRAIN], valid: [VALID]}
objective: [OBJECTIVES]
train: {steps: 12, tokens_per_step: 512, tokens_per_batch: 256, lr: 1.0e-2, warmup_steps: 4,
  precision: fp32, eval_every: 5, save_every: 4, keep: 2}
"""


# Of objectives that need another family than an encoder.
MODELS = {
    "plm": "{family: xlnet, hidden_size: 32, num_layers: 2, num_heads: 4, intermediate_size: 48}",
    "span": "{family: tests.parts.encoder_decoder}",
}
ENCODER = (
    "{family: tests.parts.proofs_encoder, hidden_size: 32, num_layers: 2, num_heads: 4,"
    " max_positions: 64}"
)


def write(folder: Path, *names: str) -> Path:
    """Write a recipe with these objectives, and its corpus; return its path."""
    full = [name if name in SHIPPED else f"{PARTS}{name}" for name in names]
    listed = ", ".join(f"{{name: {name}, max_length: 48}}" for name in full)
    text = RECIPE.replace("OBJECTIVES", listed).replace("MODEL", MODELS.get(names[0], ENCODER))
    return _tiny.write(folder, documents=60, text=text)


# Half as many tokens of a piece are changed one by one as users have: a third of the time.
FEW, ALL = 8, leaks.SHORT


@contextmanager
def bench(folder: Path, *names: str, tokens: int = FEW) -> Iterator[Bench]:
    """Yield what is proven of a list of objectives."""
    with of_recipe(write(folder, *names), tokens=tokens) as made:
        yield made


@contextmanager
def of_recipe(path: Path, *sets: str, tokens: int = FEW) -> Iterator[Bench]:
    """Yield what is proven of a recipe, in pieces of so many tokens."""
    AcceleratorState._reset_state(reset_partial_state=True)
    resolved = recipe.load(str(path), sets)
    with (
        mock.patch.object(leaks, "SHORT", tokens),
        selftest.bench(resolved, device="cpu", log=Log(QUIET), stop=StopFlag()) as made,
    ):
        yield made


def by_reference(bench: Bench) -> None:
    """Let the reference compute attention, of fewer sequences: its time is that of all pairs."""
    bench.subject.model.backend = "reference"
    right = bench.subject.draw_sources
    bench.subject.draw_sources = lambda tokens, *rest, **more: right(tokens // 3, *rest, **more)


def use(bench: Bench, *classes: type) -> None:
    """Put objectives of these classes in the place of the recipe's, settings and all."""
    subject = bench.subject
    bound = [
        cls(old.config, subject.tokenizer, bench.run.part.config)
        for cls, old in zip(classes, subject.objectives, strict=True)
    ]
    made = combine(bound, [1.0] * len(bound))
    subject.objective = subject.examples.objective = made


def check_defects(path: Path, intact: type, cut: type) -> None:
    """Check that the proofs hold, and that two objectives that are wrong fail.

    `intact` shows the target to the encoder; `cut` loses a token of the text.
    """
    with of_recipe(path) as bench:
        for proof in (
            leaks.find_leaks,
            texts.check_unmasking,
            batching.compare_packed,
        ):
            passed, figure = proof(bench.subject)
            assert passed, figure
        use(bench, intact)
        passed, figure = leaks.find_leaks(bench.subject)
        assert not passed
        assert "move with their own token" in figure
        use(bench, cut)
        passed, figure = texts.check_unmasking(bench.subject)
        assert not passed
        assert "is not in its example" in figure


def check_all(path: Path) -> None:
    """Check that all proofs of a recipe hold, those of its text among them."""
    with of_recipe(path, tokens=ALL) as bench:
        found = list(selftest.prove(bench))
    assert {"noise floor", "no leak", "unmasking", "batches"} <= {proof.name for proof in found}
    assert [(proof.name, proof.figure) for proof in found if not proof.passed] == []
