"""The objective `seq2seq`: examples, packs, loss with label smoothing, and what is cut."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from nlpkit.contracts.batch import IGNORE
from nlpkit.contracts.reader import RowError
from nlpkit.data.files import find_inputs as resolve
from nlpkit.data.items import Row, build_items
from nlpkit.data.loader import Examples
from nlpkit.data.settings import Config as DataConfig
from nlpkit.generate.settings import Settings
from nlpkit.generate.texts import Writer
from nlpkit.objectives import seq2seq
from nlpkit.objectives.examples.text import forward
from nlpkit.tokenizers import bpe, wordpiece
from nlpkit.train.machine import to_device
from tests.parts.encoder_decoder import Config
from tests.parts.encoder_decoder.model import Model

SIZES = Config(hidden_size=16, num_heads=2, intermediate_size=24, max_positions=32, dropout=0)
TOKENIZER = bpe.Tokenizer.train(["a be cat"], bpe.Config(vocab_size=258)).extended(["</s>"])
BEGIN, END = (TOKENIZER.special_id(token) for token in ("<pad>", "</s>"))


def _objective(tokenizer=TOKENIZER, **settings) -> seq2seq.Objective:
    return seq2seq.Objective(seq2seq.Config(max_length=16, **settings), tokenizer, SIZES)


def _item(objective: seq2seq.Objective, source: str, target: str):
    row = Row({"source": source, "target": target}, "pairs", 1)
    return objective.item(row, objective.encode(list(objective.texts(row))))


def test_example_is_source_with_its_end_and_target_one_step_apart() -> None:
    objective = _objective(prefix="up: ")
    source, target = (TOKENIZER.encode(text) for text in ("up: a be", "A BE"))
    item = _item(objective, "a be", "A BE")
    made = objective.example(item, np.random.default_rng(0))
    assert made["source_ids"].tolist() == [*source, END]
    assert made["input_ids"].tolist() == [BEGIN, *target]
    assert made["labels"].tolist() == [*target, END]
    assert item.size == len(source) + len(target) + 2
    assert (item.text, item.label) == ("a be", "A BE")


def test_template_makes_a_source_of_several_columns() -> None:
    template = "{{x}} a: {premise} b: {size}"
    objective = _objective(template=template, target="label", prefix="n ")
    assert objective.columns == ("premise", "size", "label")
    row = Row({"premise": "a cat", "size": 3, "label": 1.5, "source": "no"}, "rows", 1)
    assert objective.texts(row) == ("n {x} a: a cat b: 3", "1.5")
    item = objective.item(row, objective.encode(list(objective.texts(row))))
    # What `nlpkit eval` writes an answer to: the prefix is added there.
    assert (item.text, item.label) == ("{x} a: a cat b: 3", "1.5")
    # All digits: ids, years and prices are texts, too.
    for value, text in ((1234567, "1234567"), (3.14159265, "3.14159265"), (2.0, "2")):
        assert objective.texts(Row(row.values | {"label": value}, "rows", 1))[1] == text
    with pytest.raises(RowError, match='"size" is an array, neither text nor a number'):
        objective.texts(Row(row.values | {"size": [1]}, "rows", 1))
    with pytest.raises(RowError, match='no "premise"'):
        objective.texts(Row({"size": 3, "label": "x"}, "rows", 1))


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("premise: {premise", "a single brace"),
        ("a} {premise}", "a single brace"),
        ("{{x}} {}", "{} names no column"),
        ("translate {{source}}", "names no column"),
    ],
)
def test_template_with_a_mistake_is_refused(template: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"template: .*{said}"):
        seq2seq.Config(template=template)


def test_too_long_texts_lose_their_ends_and_are_counted() -> None:
    objective = _objective(max_target_length=5)
    item = _item(objective, "x" * 20, "y" * 10)
    made = objective.example(item, np.random.default_rng(0))
    # By hand: 15 of 20 tokens and the end token; 4 of 10 and the end token.
    assert len(made["source_ids"]) == 16
    assert len(made["labels"]) == 5
    assert made["labels"][-1] == END
    assert item.cut == {
        "sources cut": 1, "tokens cut from sources": 5,
        "targets cut": 1, "tokens cut from targets": 6,
    }  # fmt: skip


def test_unknown_tokens_are_read_and_never_predicted() -> None:
    config = wordpiece.Config(vocab_size=40, min_frequency=1)
    tokenizer = wordpiece.Tokenizer.train(["ab ba"], config).extended(["<pad>", "</s>"])
    objective = _objective(tokenizer)
    item = _item(objective, "ab 水", "ba 水 ab")
    made = objective.example(item, np.random.default_rng(0))
    (where,) = np.nonzero(made["labels"] == IGNORE)
    assert made["input_ids"][where + 1].tolist() == [tokenizer.unk_id]
    assert tokenizer.unk_id in made["source_ids"]
    assert objective.unlearned(item) == 1
    assert objective.num_targets(made) == {"seq2seq": len(made["labels"]) - 1}
    assert tokenizer.unk_id in objective.suppress_tokens


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("smoothing", [None, 0.0, 0.1])
def test_loss_is_torchs_and_smoothed_in_training_alone(
    training: bool, smoothing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Config, "label_smoothing", 0.2)  # the family's, where none is set
    torch.manual_seed(0)
    model = Model(SIZES, TOKENIZER.vocab_size).train(training)
    objective = _objective(label_smoothing=smoothing)
    batch = to_device(_pack(objective, [("a be", "A"), ("cat", "CAT BE")]), torch.device("cpu"))
    hidden = forward(objective, model, batch)
    loss = objective.loss(model, hidden, batch)
    logits = hidden @ model.token_embedding.T
    # torch's own smoothing
    share = (0.2 if smoothing is None else smoothing) if training else 0.0
    right = F.cross_entropy(logits, batch.fields["labels"], reduction="sum", label_smoothing=share)
    torch.testing.assert_close(loss.terms["seq2seq"].loss_sum, right, atol=1e-4, rtol=1e-5)
    assert loss.num_targets == batch.num_targets == {"seq2seq": 1 + 1 + 6 + 1}


def _pack(objective: seq2seq.Objective, pairs: list[tuple[str, str]]):
    from nlpkit.data.pack import collate

    made = [objective.example(_item(objective, *pair), np.random.default_rng(0)) for pair in pairs]
    batch = collate(made, objective.fields)
    batch.num_targets = objective.num_targets(batch.fields)
    return batch


@pytest.mark.parametrize("form", ["parallel", "tsv", "jsonl"])
def test_rows_of_every_format_give_the_same_packs(tmp_path: Path, form: str) -> None:
    pairs = [("a be", "A BE"), ("cat", "CAT"), ("be", "BE")]
    files = {
        "a.en": "\n".join(s for s, _ in pairs) + "\n",
        "a.up": "\n".join(t for _, t in pairs) + "\n",
        "a.tsv": "source\ttarget\n" + "".join(f"{s}\t{t}\n" for s, t in pairs),
        "a.jsonl": "".join(f'{{"source": "{s}", "target": "{t}"}}\n' for s, t in pairs),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    train = {"files": ["a.en", "a.up"]} if form == "parallel" else f"a.{form}"
    config = DataConfig.model_validate({"train": [train], "format": form})
    inputs, _ = resolve(config, tmp_path, tmp_path, lambda: None)
    objective = _objective()
    items = build_items(inputs, config, objective)
    examples = Examples(items, objective, 0)
    batch = examples.batch(np.arange(3), 0)
    assert batch.lengths == (5, 4, 3)
    assert batch.fields["source_lengths"] == (5, 4, 3)
    # A pack is as large as its sources and targets together, as it was planned.
    assert batch.tokens == int(examples.sizes.sum()) == 24


def test_output_may_be_as_long_as_a_target_whatever_the_input() -> None:
    objective = _objective(max_target_length=6)
    model = Model(SIZES, TOKENIZER.vocab_size).eval()
    writer = Writer(model, TOKENIZER, objective, Settings())
    assert writer.max_new_tokens == 6
    (written,) = writer.write(["a be cat a be cat"])
    assert 1 <= written.outputs[0].tokens <= 6
    assert writer.counts["cut inputs"] == 1
    (none,) = writer.write([""])
    assert none.problem == "the source is empty"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_target_length": 40}, r"40 is more than model\.max_positions 32"),
        ({"prefix": "0123456789abcdef"}, r"max_length: 16 leaves no tokens for a source after 16"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        _objective(**settings)
