"""Runs of an encoder outside the package: two losses in a list, evaluation.

Oracles: the terms by hand, runs without a stop. `test_encoder_runs` tunes a BERT for tasks.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file

from nlpkit import cli, recipe
from nlpkit.contracts.batch import IGNORE, Loss
from nlpkit.data.loader import HELD_OUT, Examples
from nlpkit.errors import RecipeError
from nlpkit.objectives.examples.text import forward
from nlpkit.runs.open_checkpoint import Opened, open_checkpoint
from nlpkit.train.losses import LossSums
from nlpkit.train.machine import to_device
from tests import _processes, _tiny

WEIGHT = 0.5
MLM = "{name: tests.parts.mlm, max_length: 48, weight: 0.5}"
NSP = "{name: tests.parts.nsp, max_length: 48}"
RECIPE = f"""\
name: tiny
model: {{family: tests.parts.encoder, hidden_size: 32, num_layers: 2, num_heads: 4,
  intermediate_size: 48, max_positions: 64, dropout: 0.1, attention_dropout: 0.0}}
tokenizer: {{kind: wordpiece, vocab_size: 120, min_frequency: 1}}
data: {{train: [TRAIN], valid: [VALID]}}
objective: [{NSP}, {MLM}]
train: {{steps: 6, tokens_per_step: 512, tokens_per_batch: 256, lr: 1.0e-2, warmup_steps: 2,
  precision: fp32, eval_every: 3, save_every: 3}}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run, whole."""
    folder = tmp_path_factory.mktemp("encoder")
    _tiny.pretrain(_tiny.write(folder, text=RECIPE), folder / "whole")
    return folder


def _same_weights(one: Path, other: Path) -> bool:
    ours, theirs = (load_file(path / "model.safetensors") for path in (one, other))
    assert ours.keys() == theirs.keys()
    return all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.slow
def test_run_of_two_losses_resumes_bit_for_bit(run: Path) -> None:
    last = _tiny.pretrain_with_stops(run / "tiny.yaml", run / "broken", [3, 7])
    assert _tiny.metrics(run / "broken") == _tiny.metrics(run / "whole")
    assert _same_weights(last, run / "whole/checkpoints/latest")


def test_checkpoint_opens_in_transformers_with_its_tokenizer(run: Path) -> None:
    saved = run / "whole/checkpoints/latest"
    theirs, said = transformers.AutoModelForPreTraining.from_pretrained(
        saved, output_loading_info=True
    )
    assert not any(said.values()), said
    tokenizer = transformers.AutoTokenizer.from_pretrained(saved)
    opened = open_checkpoint(saved, device="cpu")
    first, second = "天地人", "山水"
    given = tokenizer(first, second, return_tensors="pt", split_special_tokens=True)
    hidden = opened.model(
        (given["input_ids"].shape[1],),
        input_ids=given["input_ids"][0],
        token_type_ids=torch.tensor([0] * 5 + [1] * 3),
    )
    given["token_type_ids"] = torch.tensor([[0] * 5 + [1] * 3])
    expected = theirs.eval()(**given)
    close = {"atol": 1e-5, "rtol": 1e-5}
    torch.testing.assert_close(opened.model.logits(hidden), expected.prediction_logits[0], **close)
    scores = opened.model.pair_logits(hidden, (len(hidden),))
    torch.testing.assert_close(scores, expected.seq_relationship_logits, **close)


def _by_hand(opened: Opened, batches: list) -> dict[str, tuple[float, int]]:
    """Return sum and number of targets of each loss, by torch's cross entropy."""
    found = {"nsp": (0.0, 0), "mlm": (0.0, 0)}
    for batch in batches:
        fields = to_device(batch, torch.device("cpu")).fields
        inputs = {name: fields[name] for name in ("input_ids", "token_type_ids")}
        with torch.no_grad():
            hidden = opened.model(batch.lengths, **inputs)
            pairs = opened.model.pair_logits(hidden, batch.lengths)
            logits = opened.model.logits(hidden)
        right = fields["next_sentence_label"]
        terms = {
            "nsp": (F.cross_entropy(pairs, right, reduction="sum"), len(right)),
            "mlm": (
                F.cross_entropy(logits, fields["labels"], reduction="sum", ignore_index=IGNORE),
                int((fields["labels"] != IGNORE).sum()),
            ),
        }
        for name, (total, number) in terms.items():
            found[name] = found[name][0] + float(total), found[name][1] + number
    return found


def test_perplexity_of_eval_is_of_the_masked_tokens_alone(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = run / "whole/checkpoints/latest"
    assert cli.run(["eval", str(place), "--json", "--device", "cpu", "-q"]) == 0
    told = json.loads(capsys.readouterr().out)
    opened = open_checkpoint(place, device="cpu")
    examples = _held_out(run, opened)
    every = examples.batch(np.arange(len(examples)), 0)
    terms = _by_hand(opened, [every])
    means = {name: total / number for name, (total, number) in terms.items()}
    assert told["losses"] == pytest.approx(means, abs=1e-5)
    assert told["loss"] == pytest.approx(means["nsp"] + WEIGHT * means["mlm"], abs=1e-5)
    assert told["perplexity"] == pytest.approx(math.exp(means["mlm"]), rel=1e-5)
    # The targets are those that the perplexity is of.
    assert told["targets"] == terms["mlm"][1] != len(examples)


def _held_out(run: Path, opened: Opened) -> Examples:
    """Return the held-out examples of the run, as a run builds them."""
    from nlpkit.data import store
    from nlpkit.data.cache import cache_directory
    from nlpkit.data.files import find_inputs
    from nlpkit.data.settings import Config as DataConfig
    from nlpkit.data.store import Callbacks

    config = DataConfig(train=[str(run / "valid.txt")])
    cache = cache_directory(None, run / "cache", Callbacks().note)
    inputs, _ = find_inputs(config, run, cache, lambda: False)
    made = store.build_corpus(
        inputs, config, store.Encoding(opened.tokenizer), cache_dir=cache, callbacks=Callbacks()
    )
    return Examples(
        made, opened.objective, recipe.load(str(run / "tiny.yaml")).recipe.seed, HELD_OUT
    )


def test_accumulated_batches_are_one_batch_in_every_loss_and_gradient(run: Path) -> None:
    opened = open_checkpoint(run / "whole", device="cpu")
    examples, model = _held_out(run, opened), opened.model.requires_grad_(True)
    items = np.arange(len(examples))
    wholes = [items], np.split(items, [1, 3, 4])  # of unequal sizes
    told, gradients = [], []
    for parts in wholes:
        batches = [examples.batch(part, 0) for part in parts]
        totals = {name: sum(b.num_targets[name] for b in batches) for name in ("nsp", "mlm")}
        assert totals["nsp"] == len(items) != totals["mlm"]
        model.zero_grad()
        sums = LossSums()
        for batch in batches:
            moved = to_device(batch, torch.device("cpu"))
            loss: Loss = opened.objective.loss(
                model, forward(opened.objective, model, moved), moved
            )
            loss.mean(totals).backward()
            sums.add(loss)
        told.append(sums.means)
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
    assert told[0] == pytest.approx(told[1], abs=1e-6)
    for name, gradient in gradients[0].items():
        assert (gradient - gradients[1][name]).abs().max() < 1e-6, name
        assert gradient.abs().max() > 0, name


@pytest.mark.slow
@pytest.mark.parametrize("alone", [False, True], ids=["two losses", "a head is not used"])
def test_two_processes_give_the_losses_of_one(tmp_path: Path, alone: bool) -> None:
    sets = ("model.dropout=0.0",)
    text = RECIPE.replace(f"[{NSP}, {MLM}]", MLM) if alone else RECIPE
    path = _tiny.write(tmp_path, text=text)
    _tiny.pretrain(path, tmp_path / "one", *sets)
    verb = ("pretrain", path, "--out", tmp_path / "two", "--set", *sets)
    done = _processes.launched(2, *verb, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    for ours, theirs in _tiny.figures_of_both(tmp_path / "one", tmp_path / "two"):
        assert theirs["losses"] == pytest.approx(ours["losses"], abs=1e-4)
        assert theirs["targets"] == ours["targets"]


def test_encoder_generates_no_text_and_says_so(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["generate", str(run / "whole"), "--device", "cpu", "-q"]) == 2
    *_, line = capsys.readouterr().err.strip().splitlines()
    assert "was trained for nsp, mlm and does not generate text" in line


GPT = "model: {family: gpt, hidden_size: 32, num_layers: 1, num_heads: 4, max_positions: 64}\n"


@pytest.mark.parametrize(
    ("model", "objective", "said"),
    [
        (GPT, "{name: tests.parts.mlm, max_length: 48}",
         r"5:19: objective\.name: tests\.parts\.mlm needs bidirectional .*gpt does not have"),
        (None, f"[{MLM}, {NSP}]",
         r"6:\d+: objective\.1\.name: tests\.parts\.nsp makes whole examples and cannot follow"),
        (None, "{name: clm, max_length: 48}", r"6:19: objective\.name: clm needs causal"),
        (None, f"[{NSP}, {MLM}, {MLM}]",
         r"6:\d+: objective\.2\.name: tests\.parts\.mlm has a loss called mlm, as .*mlm before it"),
    ],
    ids=["masked on gpt", "pairs second", "causal on the encoder", "one loss twice"],
)  # fmt: skip
def test_objectives_that_do_not_fit_are_named_with_their_line(
    tmp_path: Path, model: str | None, objective: str, said: str
) -> None:
    lines = RECIPE.splitlines(keepends=True)
    lines[5] = f"objective: {objective}\n"
    if model:
        lines[1:3] = [model]
    with pytest.raises(RecipeError, match=said):
        recipe.load(str(_tiny.write(tmp_path, text="".join(lines))))
