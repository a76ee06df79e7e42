"""Replaced-token detection: what is masked and sampled, both losses, runs, tasks, defects.

Expected numbers are the settings themselves, hand arithmetic, and transformers' classifier.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file

from nlpkit import cli, recipe
from nlpkit.contracts.batch import IGNORE, Batch, Loss, Term
from nlpkit.data.pack import collate
from nlpkit.errors import NlpkitError, RecipeError, UsageError
from nlpkit.models import electra
from nlpkit.models.electra import model as electra_model
from nlpkit.objectives import rtd
from nlpkit.runs.open_checkpoint import open_checkpoint
from nlpkit.selftest import batching, leaks, texts
from tests import _provable, _tiny
from tests._masked import bound, bound_of, document, examples, tokenizer
from tests._tiny_tasks import rows_of, write_rows

MODEL = electra.Config(
    hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16, max_positions=512
)
RECIPE = """\
name: tiny
model: {family: electra, hidden_size: 32, num_layers: 2, num_heads: 4, intermediate_size: 48,
  embedding_size: 16, generator_size: 0.5, max_positions: 64, attention_dropout: 0.0}
tokenizer: {kind: wordpiece, vocab_size: 120, min_frequency: 1}
data: {train: [TRAIN], valid: [VALID]}
objective: {name: rtd, max_length: 48}
train: {steps: 6, tokens_per_step: 512, tokens_per_batch: 256, lr: 1.0e-2, warmup_steps: 2,
  precision: fp32, eval_every: 3, save_every: 3, keep: 9}
"""
TASK = """\
name: task
init_from: START
data: {train: [FOLDER/train.jsonl], valid: [FOLDER/valid.jsonl]}
objective: {name: classification, max_length: 40}
train: {steps: 6, tokens_per_step: 512, tokens_per_batch: 256, lr: 1.0e-2, warmup_steps: 2,
  precision: fp32, eval_every: 3, save_every: 3, keep: 9}
"""


# Examples


def test_masks_are_those_of_the_authors_code() -> None:
    objective = bound("rtd", MODEL)
    made = list(examples(objective, 1000, 100))
    inputs, labels = (np.concatenate([e[n] for e in made]) for n in ("input_ids", "labels"))
    chosen = labels != IGNORE
    total = int(chosen.sum())
    # mask_prob 0.15, of which 0.85 become [MASK] and none a random token (pretrain_helpers.mask)
    assert total / 100_000 == pytest.approx(0.15, abs=bound_of(0.15, 100_000))
    masked = int((inputs[chosen] == objective.mask).sum())
    assert masked / total == pytest.approx(0.85, abs=bound_of(0.15, total))
    assert int((inputs[chosen] == labels[chosen]).sum()) == total - masked
    assert np.array_equal(np.concatenate([e["is_target"] for e in made]), chosen)
    uniform = np.concatenate([e["uniform"] for e in made])
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert uniform.mean() == pytest.approx(0.5, abs=5 / np.sqrt(12 * len(uniform)))


def test_whole_words_are_masked_as_wholes() -> None:
    plain, whole = bound("rtd", MODEL), bound("rtd", MODEL, whole_words=True)
    assert (plain.token_flags, whole.token_flags) == ((), ("word_start",))
    rng, shares = np.random.default_rng(0), set()
    for _ in range(100):
        text = document(4, rng)
        example = whole.example(text, rng)
        word = np.cumsum(text.has("word_start"))
        chosen = example["is_target"][1:-1]
        counts = np.bincount(word, chosen)[1:] / np.bincount(word)[1:]
        shares |= {*counts.tolist()}
    assert shares == {0.0, 1.0}


def test_rate_that_falls_takes_targets_and_samples_back() -> None:
    objective = bound("rtd", MODEL, rate=0.5, final_rate=0.1)
    for example in examples(objective, 20, 50):
        for progress in (0.0, 1.0):
            now = objective.at_progress(example, progress)
            assert np.array_equal(now["is_target"], now["labels"] != IGNORE)


# Losses


class Fixed:
    """A model whose samples and scores are given."""

    def __init__(self, drawn: list[int], scores: list[float]):
        self.drawn, self.scores, self.read = torch.tensor(drawn), torch.tensor(scores), None

    def token_loss(self, hidden, index, targets):
        self.targets = targets.tolist()
        return hidden.sum(), None

    def sample_tokens(self, hidden, index, uniform, temperature):
        self.numbers, self.temperature = uniform.tolist(), temperature
        return self.drawn

    def __call__(self, lengths, input_ids, token_type_ids):
        self.read = input_ids.tolist()
        return torch.zeros(len(input_ids), 1)

    def replaced_logits(self, hidden, lengths):
        return self.scores


def _fixed(objective: Any) -> tuple[Fixed, Loss]:
    """Return the loss of six tokens, of which three are targets and two are replaced."""
    ids = torch.tensor([2, 4, 11, 4, 13, 3])
    labels = torch.tensor([IGNORE, 10, IGNORE, 12, 13, IGNORE])
    fields = {
        "input_ids": ids, "labels": labels, "token_type_ids": torch.zeros(6, dtype=torch.long),
        "is_target": labels != IGNORE, "uniform": torch.arange(6) / 8,
    }  # fmt: skip
    # The second sample is the original token; the first and the third are not.
    model = Fixed([20, 12, 21], [-1.0, 2.0, -0.1, 0.1, -1.0, -3.0])
    return model, objective.loss(model, torch.tensor([[1.5]]), Batch(fields, (6,)))


def test_sample_that_is_the_original_token_counts_as_original() -> None:
    model, loss = _fixed(bound("rtd", MODEL, temperature=0.5))
    assert model.read == [2, 20, 11, 12, 21, 3]
    assert (model.targets, model.numbers) == ([10, 12, 13], [1 / 8, 3 / 8, 4 / 8])
    assert model.temperature == 0.5
    expected = F.binary_cross_entropy_with_logits(
        model.scores, torch.tensor([0.0, 1, 0, 0, 1, 0]), reduction="sum"
    )
    assert loss.num_targets == {"mlm": 3, "rtd": 6}
    torch.testing.assert_close(loss.terms["rtd"].loss_sum, expected)
    # Clark et al. 2020, sec. 2: the generator's mean + 50 times the discriminator's mean.
    total = 1.5 / 3 + 50 * expected / 6
    torch.testing.assert_close(loss.mean(loss.num_targets), total)


def test_figures_of_the_log_are_shares_of_tokens() -> None:
    _, loss = _fixed(bound("rtd", MODEL))
    shares = {name: float(total) / number for name, (total, number) in loss.parts.items()}
    # Replaced are tokens 1 and 4, called replaced are 1 and 3.
    assert shares["replaced"] == pytest.approx(2 / 6)
    assert shares["rtd_accuracy"] == pytest.approx(4 / 6)
    assert shares["rtd_recall"] == pytest.approx(1 / 2)
    assert {*loss.parts} == {*rtd.Objective.parts}


def test_weights_of_the_losses_are_settings() -> None:
    _, loss = _fixed(bound("rtd", MODEL, mlm_weight=2.0, rtd_weight=3.0))
    assert {name: term.weight for name, term in loss.terms.items()} == {"mlm": 2.0, "rtd": 3.0}


def test_same_numbers_draw_the_same_tokens_in_every_pack() -> None:
    objective = bound("rtd", MODEL)
    torch.manual_seed(0)
    model = electra_model.Model(MODEL, tokenizer().vocab_size).eval()
    torch.nn.init.normal_(model.generator.token_bias, std=2.0)

    def drawn(made: list[dict[str, np.ndarray]]) -> torch.Tensor:
        packed = collate(made, objective.fields)
        fields = {name: torch.from_numpy(values) for name, values in packed.fields.items()}
        (index,) = fields["is_target"].nonzero(as_tuple=True)
        with torch.no_grad():
            inputs = {name: fields[name] for name in objective.inputs}
            hidden = model(packed.lengths, **inputs)
            return model.sample_tokens(hidden, index, fields["uniform"][index])

    made = list(examples(objective, 30, 40))
    assert torch.equal(drawn(made), torch.cat([drawn([each]) for each in made]))


# Runs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run, whole."""
    folder = tmp_path_factory.mktemp("electra")
    _tiny.pretrain(_tiny.write(folder, text=RECIPE), folder / "whole")
    return folder


@pytest.mark.slow
def test_run_logs_both_losses_and_resumes_bit_for_bit(run: Path) -> None:
    last = _tiny.pretrain_with_stops(run / "tiny.yaml", run / "broken", [3, 7])
    records = _tiny.metrics(run / "whole")
    assert _tiny.metrics(run / "broken") == records
    whole = run / "whole/checkpoints/latest"
    for folder in ("", "generator"):
        ours, theirs = (load_file(p / folder / "model.safetensors") for p in (whole, last))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    held_out = records[-1]["held_out"]
    losses = held_out["losses"]
    assert {"mlm", "rtd", "replaced", "rtd_accuracy"} <= {*losses}
    assert held_out["loss"] == pytest.approx(losses["mlm"] + 50 * losses["rtd"])
    assert held_out["perplexity"] == pytest.approx(np.exp(losses["mlm"]))


def _task(run: Path, name: str, *sets: str, start: Path | None = None) -> Path:
    """Tune the run's last checkpoint for a task, with a stop; return the run's folder."""
    folder = run / name
    folder.mkdir()
    for part, seed in (("train", 1), ("valid", 2)):
        write_rows(folder / f"{part}.jsonl", rows_of("classes", 40, seed))
    text = TASK.replace("START", str(start or run / "whole/checkpoints/latest"))
    path = folder / "task.yaml"
    path.write_text(text.replace("FOLDER", str(folder)), encoding="utf-8")
    _tiny.pretrain_with_stops(path, folder / "run", [6], *sets)
    return folder


def test_task_keeps_the_discriminator_and_opens_in_transformers(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = _task(run, "classes")
    _tiny.pretrain(folder / "task.yaml", folder / "whole")
    assert _tiny.metrics(folder / "whole") == _tiny.metrics(folder / "run")
    saved = folder / "run/checkpoints/latest"
    assert not (saved / "generator").exists()
    opened = open_checkpoint(saved, device="cpu")
    assert opened.model.generator is None
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(saved).eval()
    assert type(theirs).__name__ == "ElectraForSequenceClassification"
    given = transformers.AutoTokenizer.from_pretrained(saved)("花天地", return_tensors="pt")
    ids, types = given["input_ids"][0], given["token_type_ids"][0]
    ours = opened.model.head(
        opened.model.summary(opened.model((len(ids),), ids, types), [len(ids)])
    )
    torch.testing.assert_close(ours, theirs(**given).logits, atol=1e-5, rtol=1e-5)
    assert cli.run(["eval", str(folder / "run"), "--json", "--device", "cpu", "-q"]) == 0
    assert "accuracy" in json.loads(capsys.readouterr().out)["metrics"]
    out = folder / "converted"
    assert cli.run(["convert", str(saved), str(out), "-q"]) == 0
    assert not (out / "generator").exists()


def test_pretrained_run_is_evaluated_and_converted_whole(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["eval", str(run / "whole"), "--json", "--device", "cpu", "-q"]) == 0
    assert json.loads(capsys.readouterr().out)["losses"]["rtd"] > 0
    out = run / "converted"
    source = run / "whole/checkpoints/latest"
    assert cli.run(["convert", str(source), str(out), "-q"]) == 0
    for folder in ("", "generator"):
        ours, theirs = (load_file(p / folder / "model.safetensors") for p in (source, out))
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.slow
def test_adapters_of_a_task_open_without_the_generator(run: Path) -> None:
    folder = _task(run, "adapted", "lora={rank: 2}")
    lines: list[str] = []
    opened = open_checkpoint(folder / "run/checkpoints/latest", device="cpu", warn=lines.append)
    assert (opened.model.generator, lines) == (None, [])


@pytest.mark.slow
def test_training_goes_on_from_a_discriminator_alone_if_the_generator_may_be_missing(
    run: Path,
) -> None:
    theirs = transformers.ElectraForPreTraining.from_pretrained(run / "whole/checkpoints/latest")
    start = run / "discriminator"
    theirs.save_pretrained(start)
    transformers.AutoTokenizer.from_pretrained(run / "whole/checkpoints/latest").save_pretrained(
        start
    )
    lines = RECIPE.splitlines(keepends=True)
    text = "".join([lines[0], f"init_from: {start}\n", *lines[4:]])
    path = _tiny.write(run / "on", text=text)
    with pytest.raises(
        NlpkitError, match=r"with generator_size null .*init_missing: \[generator\]"
    ):
        _tiny.pretrain(path, run / "on/a")
    last = _tiny.pretrain(path, run / "on/b", "init_missing=[generator]")
    assert (last / "generator/config.json").is_file()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("family: electra", "family: bert", r"7:19: .*rtd needs generator .*trains: electra"),
        (
            "generator_size: 0.5",
            "generator_size: null",
            r"7:19: .* with generator_size null does not have; with generator_size 0.25 it does$",
        ),
        ("name: rtd", "name: mlm", r"7:19: .*mlm needs predicts_tokens .*electra does not have"),
        ("name: rtd", "name: nsp", r"7:19: .*nsp needs scores_pairs .*electra does not have"),
    ],
    ids=["another family", "no generator", "masked tokens alone", "pairs"],
)
def test_what_does_not_fit_is_refused_at_its_line(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    text = RECIPE.replace(old, new)
    if "bert" in new:
        text = text.replace("embedding_size: 16, generator_size: 0.5, ", "")
    with pytest.raises(RecipeError, match=said.replace("7:19", r"\d:19")):
        recipe.load(str(_tiny.write(tmp_path, text=text)))


def test_heads_of_the_generator_that_do_not_fit_the_attention_are_refused_at_its_line(
    tmp_path: Path,
) -> None:
    text = RECIPE + "attention: {kind: longformer, window: 8, dilation: [1, 1, 2, 2]}\n"
    path = _tiny.write(tmp_path, text=text)
    with pytest.raises(RecipeError) as error:
        recipe.load(str(path))
    (problem,) = error.value.problems
    assert problem.startswith(f"{path}:9:19: attention.kind: longformer does not fit the model: ")
    assert "the number of heads is 1 in the generator; set model.generator_heads" in problem
    recipe.load(str(path), ["model.generator_heads=4"])


def test_objective_that_keeps_no_marks_cannot_be_masked_by_words() -> None:
    objective = bound("rtd", MODEL, whole_words=True)
    with pytest.raises(UsageError, match="needs the flags of words"):
        objective.transform({"input_ids": np.arange(5, 20)}, np.random.default_rng(0))


# Planted defects


class Uncovered(rtd.Objective):
    """Its generator reads what it predicts."""

    def masked(self, example, rng):
        made = super().masked(example, rng)
        return self.unmask(made) | {"is_target": made["is_target"]}

    def shown(self, example):
        return np.zeros(len(example["labels"]), np.bool_)


class Sampled(rtd.Objective):
    """Calls a sample replaced also where it is the original token."""

    def replaced(self, read, original, labels):
        return labels != IGNORE


class Unread(rtd.Objective):
    """Its discriminator reads the original text."""

    def corrupted(self, model, hidden, index, original, batch):
        return original


class Chance(rtd.Objective):
    """Draws its samples by torch's generator."""

    def corrupted(self, model, hidden, index, original, batch):
        numbers = torch.rand(len(original))
        other = Batch({**batch.fields, "uniform": numbers}, batch.lengths)
        return super().corrupted(model, hidden, index, original, other)


class Partial(rtd.Objective):
    """Its discriminator learns from the targets alone."""

    def loss(self, model, hidden, batch):
        loss = super().loss(model, hidden, batch)
        term = loss.terms["rtd"]
        number = int(batch.fields["is_target"].sum())
        return Loss(loss.terms | {"rtd": Term(term.loss_sum, number, term.weight)})


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory):
    """What is proven of the objective; the tests put others in its place."""
    text = _provable.RECIPE.replace("OBJECTIVES", "{name: rtd, max_length: 48}")
    family = RECIPE.splitlines()[1:3]
    text = text.replace("MODEL", " ".join(family).partition("model: ")[2])
    folder = tmp_path_factory.mktemp("bench")
    with _provable.of_recipe(_tiny.write(folder, documents=60, text=text)) as made:
        yield made


@pytest.mark.parametrize(
    ("broken", "proof", "said"),
    [
        pytest.param(
            *(Uncovered, leaks.find_leaks, "move with their own token"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(Sampled, texts.check_detection, "with the wrong label"), marks=pytest.mark.slow
        ),
        (Unread, texts.check_detection, "0 replaced"),
        pytest.param(*(Chance, batching.compare_packed, "max |Δ| / loss"), marks=pytest.mark.slow),
        (Partial, batching.compare_gradients, "targets of rtd are counted as"),
    ],
)
def test_selftest_finds_planted_defects(
    bench, monkeypatch: pytest.MonkeyPatch, broken, proof, said: str
) -> None:
    given = bench if proof is batching.compare_gradients else bench.subject
    monkeypatch.setattr(texts, "COUNT", 40)
    _provable.use(bench, rtd.Objective)
    passed, figure = proof(given)
    assert passed, figure
    _provable.use(bench, broken)
    passed, figure = proof(given)
    assert not passed
    assert said in figure


def test_gradient_through_samples_would_reach_the_generator() -> None:
    """The check of the gradients in test_model_electra.py sees a straight-through sample."""

    class Straight(electra_model.Model):
        def sample_tokens(self, hidden, index, uniform, temperature=1.0):
            self.kept = self.logits(hidden[index]).softmax(1).amax(1).sum()
            return super().sample_tokens(hidden, index, uniform, temperature)

        def replaced_logits(self, hidden, lengths):
            return super().replaced_logits(hidden, lengths) + self.kept - self.kept.detach()

    for kind, reaches in ((electra_model.Model, False), (Straight, True)):
        model, objective = kind(MODEL, tokenizer().vocab_size), bound("rtd", MODEL)
        packed = collate(list(examples(objective, 3, 20)), objective.fields)
        fields = {name: torch.from_numpy(values) for name, values in packed.fields.items()}
        inputs = {name: fields[name] for name in objective.inputs}
        loss = objective.loss(model, model(packed.lengths, **inputs), Batch(fields, packed.lengths))
        loss.terms["rtd"].loss_sum.backward()
        found = [p.grad is not None for p in model.generator.parameters()]
        assert any(found) == reaches
