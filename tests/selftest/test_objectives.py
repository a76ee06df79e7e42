"""`nlpkit selftest` of the masked and paired objectives that come with nlpkit, sound and broken."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from nlpkit import selftest
from nlpkit.contracts.batch import IGNORE
from nlpkit.objectives import mlm, nsp, sop, span, wwm
from nlpkit.selftest import leaks, texts
from nlpkit.selftest.subject import Bench
from tests import _provable, _tiny
from tests._masked import SENTENCES

RECIPE = """\
name: tiny
model: {family: bert, hidden_size: 32, num_layers: 2, num_heads: 4, intermediate_size: 48,
  max_positions: 64}
tokenizer: {kind: wordpiece, vocab_size: 160, min_frequency: 1}
data: {train: [TRAIN], valid: [VALID]}
objective: [OBJECTIVES]
train: {steps: 12, tokens_per_step: 512, tokens_per_batch: 256, lr: 1.0e-2, warmup_steps: 4,
  precision: fp32, eval_every: 5, save_every: 4, keep: 2}
"""


@contextmanager
def _bench(folder: Path, *names: str, tokens: int = _provable.FEW) -> Iterator[Bench]:
    listed = ", ".join(f"{{name: {name}, max_length: 64}}" for name in names)
    path = _tiny.write(folder, text=RECIPE.replace("OBJECTIVES", listed))
    rng = np.random.default_rng(0)
    for name, count in (("train.txt", 80), ("valid.txt", 8)):
        lines = [" ".join(rng.choice(SENTENCES, int(rng.integers(3, 8)))) for _ in range(count)]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    with _provable.of_recipe(path, tokens=tokens) as made:
        yield made


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("mlm",), marks=pytest.mark.slow),  # the others mask as it does
        pytest.param(("nsp", "wwm"), marks=pytest.mark.slow),
        ("sop", "span"),
    ],
    ids=["mlm", "nsp+wwm", "sop+span"],
)
@pytest.mark.slow
def test_selftest_of_examples_holds(tmp_path: Path, names: tuple[str, ...]) -> None:
    with _bench(tmp_path, *names) as bench:
        subject = bench.subject
        proofs = [texts.check_unmasking, texts.count_shown, leaks.find_neighbour_leaks]
        proofs += [texts.check_negatives] if "nsp" in names else []
        for proof in proofs:
            passed, figure = proof(subject)
            assert passed, figure


@pytest.mark.slow
@pytest.mark.parametrize(
    "names", [("mlm",), ("nsp", "wwm"), ("sop", "span")], ids=["mlm", "nsp+wwm", "sop+span"]
)
def test_selftest_proves_all(tmp_path: Path, names: tuple[str, ...]) -> None:
    with _bench(tmp_path, *names, tokens=_provable.ALL) as bench:
        found = list(selftest.prove(bench))
    assert [(proof.name, proof.figure) for proof in found if not proof.passed] == []


class Corrupting(wwm.Objective):
    """Loses the last token of the text, as the most-used old whole-word masking does."""

    def masked(self, example, rng):
        made = super().masked(example, rng)
        inputs = made["input_ids"].copy()
        inputs[-2] = inputs[-3]
        return made | {"input_ids": inputs, "labels": np.append(made["labels"][:-2], [IGNORE] * 2)}


class Special(mlm.Objective):
    """Draws special tokens as random ones."""

    def __init__(self, config, tokenizer, model_config):
        super().__init__(config, tokenizer, model_config)
        self.text_ids = np.array([*self.frame.start, *self.frame.end])


class Kept(mlm.Objective):
    """Leaves its targets as they are, and says that it hides most."""

    def masked(self, example, rng):
        return self.unmask(super().masked(example, rng))


class Beside(span.Objective):
    """Leaves the inner tokens of its spans as they are."""

    def masked(self, example, rng):
        made = super().masked(example, rng)
        labels, spans = made["labels"], made["span"]
        inner = (spans > 0) & (spans == np.roll(spans, 1))
        return made | {"input_ids": np.where(inner, labels, made["input_ids"])}


class SameDocument(nsp.Objective):
    """Takes the second text of the same document."""

    def example(self, ids, rng, negatives):
        return super().example(ids, rng, [ids])


class Short(nsp.Objective):
    """Its false second texts are a token long."""

    def example(self, ids, rng, negatives):
        made = super().example(ids, rng, negatives)
        if made["next_sentence_label"][0]:
            second = np.flatnonzero(made["token_type_ids"] == 1)
            for name in ("input_ids", "token_type_ids", "token_flags"):
                made[name] = np.delete(made[name], second[1:-1])
        return made


class Guessed(sop.Objective):
    """Labels have nothing to do with the order."""

    def example(self, ids, rng):
        made = super().example(ids, rng)
        return made | {"sentence_order_label": rng.integers(2, size=1)}


@pytest.fixture(scope="module")
def shared_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Bench]]:
    """Return what is proven of the objective of a name, made once: proofs change nothing of it."""
    with ExitStack() as stack:
        yield cache(
            lambda name: stack.enter_context(_bench(tmp_path_factory.mktemp("bench"), name))
        )


@pytest.mark.parametrize(
    ("broken", "proof", "said"),
    [
        (Corrupting, texts.check_unmasking, "is not in its example"),
        pytest.param(
            *(Special, texts.count_shown, "have a special token instead"), marks=pytest.mark.slow
        ),
        pytest.param(*(Kept, texts.count_shown, "100.00% of"), marks=pytest.mark.slow),
        pytest.param(*(Beside, texts.count_shown, "expected 20.00%"), marks=pytest.mark.slow),
        (SameDocument, texts.check_negatives, "0 of 200 examples have text of another document"),
        (Guessed, texts.check_unmasking, "is not in its example"),
        pytest.param(
            Short, leaks.find_label_leaks, "something other than the text", marks=pytest.mark.slow
        ),
    ],
)
def test_selftest_of_a_broken_objective_fails(
    shared_bench: Callable[[str], Bench], broken, proof, said: str
) -> None:
    bench = shared_bench(broken.__base__.__module__.rpartition(".")[2])
    _provable.use(bench, broken)
    passed, figure = proof(bench.subject)
    assert not passed, figure
    assert said in figure
