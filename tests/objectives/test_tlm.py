"""Translation language modelling: pairs, restarting positions, types as languages; and in a BERT
that transformers computes as well."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig, XLMConfig

from nlpkit import recipe
from nlpkit.checkpoints import hf_layout, hf_model
from nlpkit.contracts.batch import IGNORE, FlaggedIds
from nlpkit.contracts.reader import Counts
from nlpkit.data.documents import Document
from nlpkit.data.pack import collate
from nlpkit.data.tokenize import Encoding, encode
from nlpkit.errors import DataError, RecipeError
from nlpkit.models import bert, families, xlm
from nlpkit.objectives import tlm
from nlpkit.objectives.examples.text import forward
from tests._families import oracle
from tests._losses import all_states
from tests._masked import bound_of, flagged, tokenizer

SIZES = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "intermediate_size": 24}
XLM = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "max_positions": 64}
CONFIG = bert.Config(**SIZES, max_positions=64)


def _objective(**settings) -> tlm.Objective:
    settings = {"max_length": 64} | settings
    return tlm.Objective(tlm.Config(**settings), tokenizer(), CONFIG)


def _pair(first: str, second: str) -> FlaggedIds:
    one, two = flagged(first), flagged(second, is_second=True)
    return FlaggedIds(np.append(one.ids, two.ids), np.append(one.token_flags, two.token_flags))


PAIR = _pair("A model predicts what it does not see.", "我们预测被遮住的词语。")


def test_pair_is_two_texts_with_languages_and_positions_of_their_own() -> None:
    objective = _objective()
    example = objective.example(PAIR, np.random.default_rng(0))
    second = int(PAIR.has("second_side").sum())
    first = len(PAIR) - second
    assert example["token_type_ids"].tolist() == [0] * (first + 2) + [1] * (second + 1)
    # By hand: [CLS] A [SEP] is 0 … first + 1, and the translation begins with 0 again.
    assert example["position_ids"].tolist() == [*range(first + 2), *range(second + 1)]
    whole = objective.unmask(example)["input_ids"]
    begin, end = (tokenizer().special_id(token) for token in ("[CLS]", "[SEP]"))
    assert whole[[0, first + 1, -1]].tolist() == [begin, end, end]
    texts = objective.restore(objective.unmask(example))
    assert np.array_equal(np.concatenate(texts), PAIR.ids)
    assert len(texts[1]) == second


@pytest.mark.slow
def test_both_languages_are_masked_at_the_rate() -> None:
    objective = _objective()
    count = 4000
    chosen = np.zeros(len(PAIR) + 3)
    for number in range(count):
        chosen += objective.example(PAIR, np.random.default_rng(number))["labels"] != IGNORE
    assert chosen.sum() / (count * len(PAIR)) == pytest.approx(
        0.15, abs=bound_of(0.15, count * len(PAIR))
    )
    special = [0, int((~PAIR.has("second_side")).sum()) + 1, -1]
    assert chosen[special].tolist() == [0, 0, 0]
    assert (np.delete(chosen, special) / count > 0.1).all()


def test_pairs_that_are_too_long_are_dropped_and_counted() -> None:
    objective = _objective(max_length=10)
    found = objective.spans(np.array([7, 8, 1, 2]))
    assert (found.document.tolist(), found.stop.tolist()) == ([0, 3], [7, 2])
    assert found.dropped == {"pairs_too_long": 1, "pairs_without_text": 1}
    assert objective.length(found.stop - found.start).tolist() == [10, 5]


def test_pair_with_a_text_of_no_tokens_is_left_out_and_counted() -> None:
    counts = Counts()
    pairs = [("one two", "three"), ("one", "\u200b"), ("\u200b", "three"), ("two", "one")]
    documents = [Document(pair, "f", 1) for pair in pairs]
    encoding = Encoding(tokenizer(), token_flags=("second_side",))
    ids, sizes, flags = encode(documents, encoding, counts)
    whole = [flagged(text).ids.tolist() for text in ("one two", "three", "two", "one")]
    assert ids.tolist() == [token for text in whole for token in text]
    assert sizes.tolist() == [len(whole[0] + whole[1]), len(whole[2] + whole[3])]
    assert len(flags) == len(ids)
    assert counts.tokenless == 2


def test_text_without_translation_is_refused_with_what_would_be_right() -> None:
    with pytest.raises(DataError, match=r"set data\.format: parallel"):
        _objective().example(flagged("one two."), np.random.default_rng(0))


def test_languages_are_those_of_xlm_and_restored_text_is_the_pair() -> None:
    settings = tlm.Config(max_length=64, languages=[2, 0])
    config = xlm.Config(**XLM, num_languages=3)
    objective = tlm.Objective(settings, tokenizer(), config)
    assert objective.inputs == ("input_ids", "langs", "position_ids")
    example = objective.example(PAIR, np.random.default_rng(0))
    assert "token_type_ids" not in example
    second = int(PAIR.has("second_side").sum())
    first = len(PAIR) - second
    assert example["langs"].tolist() == [2] * (first + 2) + [0] * (second + 1)
    texts = objective.restore(objective.unmask(example))
    assert [len(text) for text in texts] == [first, second]
    assert np.array_equal(np.concatenate(texts), PAIR.ids)


@pytest.mark.parametrize(
    ("config", "setting"), [(CONFIG, "type_vocab_size"), (xlm.Config(**XLM), "num_languages")]
)
def test_language_that_the_model_does_not_have_is_refused(config, setting: str) -> None:
    settings = tlm.Config(max_length=64, languages=[0, 2])
    with pytest.raises(ValueError, match=rf"has 0 to 1; raise model\.{setting}"):
        tlm.Objective(settings, tokenizer(), config)


def test_model_of_one_language_is_refused_by_the_setting_that_says_so() -> None:
    with pytest.raises(RecipeError, match=r"family xlm with num_languages 1 does not have"):
        recipe.load("xlm_tlm", ["model.num_languages=1"])


@pytest.mark.parametrize("family", ["bert", "xlm"])
def test_states_are_those_of_transformers_with_the_same_positions(
    tmp_path: Path, family: str
) -> None:
    size = tokenizer().vocab_size
    if family == "bert":
        theirs = oracle.drawn(
            "BertForPreTraining",
            BertConfig(
                vocab_size=size, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                intermediate_size=24, max_position_embeddings=64,
            ),
        )  # fmt: skip
    else:
        sizes = {"emb_dim": 16, "n_layers": 2, "n_heads": 2, "max_position_embeddings": 64}
        config = XLMConfig(vocab_size=size, n_langs=2, pad_token_id=-1, **sizes)
        theirs = oracle.drawn("XLMWithLMHeadModel", config)
    theirs.save_pretrained(tmp_path)
    loaded = hf_model.from_hf(family, tmp_path, *hf_layout.read(tmp_path))
    model = families.load_model(family).Model(loaded.config, size).eval()
    model.load_state_dict(loaded.state)
    objective = tlm.Objective(tlm.Config(max_length=64), tokenizer(), loaded.config)
    made = [objective.example(PAIR, np.random.default_rng(n)) for n in range(3)]
    batch = collate(made, objective.fields)
    batch.fields = {n: torch.from_numpy(v) for n, v in batch.fields.items()}
    with torch.no_grad():
        ours = all_states(objective, model, batch)
        for example, states in zip(made, ours.split([*batch.lengths]), strict=True):
            given = {n: torch.from_numpy(example[n])[None] for n in objective.inputs}
            wanted = theirs(**given, output_hidden_states=True).hidden_states[-1][0]
            torch.testing.assert_close(states, wanted, **oracle.CLOSE)


def test_share_of_the_pairs_is_two_sequences_masked_apart() -> None:
    settings = tlm.Config(max_length=64, monolingual=0.25)
    objective = tlm.Objective(settings, tokenizer(), xlm.Config(**XLM))
    made = [objective.example(PAIR, np.random.default_rng(n)) for n in range(2000)]
    apart = np.array([len(example["lengths"]) == 2 for example in made])
    assert apart.mean() == pytest.approx(0.25, abs=bound_of(0.25, len(made)))
    second = int(PAIR.has("second_side").sum())
    first = len(PAIR) - second
    for example in (made[apart.argmax()], made[apart.argmin()]):
        is_apart = len(example["lengths"]) == 2
        # By hand: [CLS] A [SEP] [CLS] B [SEP], or [CLS] A [SEP] B [SEP].
        ids = objective.unmask(example)["input_ids"]
        start, end = [[tokenizer().special_id(token)] for token in ("[CLS]", "[SEP]")]
        middle = [*end, *(start if is_apart else [])]
        assert ids.tolist() == [*start, *PAIR.ids[:first], *middle, *PAIR.ids[first:], *end]
        assert example["lengths"].sum() == len(ids) <= objective.length(np.array([len(PAIR)]))[0]
        assert example["langs"].tolist() == [0] * (first + 2) + [1] * (second + 1 + is_apart)
        positions = [*range(first + 2), *range(second + 1 + is_apart)]
        assert example["position_ids"].tolist() == positions
        texts = objective.restore(objective.unmask(example))
        assert [text.tolist() for text in texts] == [
            PAIR.ids[:first].tolist(), PAIR.ids[first:].tolist()
        ]  # fmt: skip
    targets = np.mean([(example["labels"] != IGNORE).sum() for example in made])
    draws = len(made) * len(PAIR)
    assert targets / len(PAIR) == pytest.approx(0.15, abs=bound_of(0.15, draws))


def test_examples_of_the_default_are_those_without_the_setting() -> None:
    old = tlm.Objective(tlm.Config(max_length=64), tokenizer(), CONFIG)
    example = old.example(PAIR, np.random.default_rng(3))
    assert {*example} == {"input_ids", "token_type_ids", "labels", "position_ids", "token_flags"}
    assert (old.parts, old.extra) == (("mlm",), 3)


def test_loss_of_texts_apart_is_that_of_each_alone_and_is_told_by_kind() -> None:
    settings = tlm.Config(max_length=64, monolingual=0.5)
    config = xlm.Config(**XLM)
    objective = tlm.Objective(settings, tokenizer(), config)
    torch.manual_seed(0)
    model = families.load_model("xlm").Model(config, tokenizer().vocab_size).eval()
    made = [objective.example(PAIR, np.random.default_rng(n)) for n in range(6)]
    batch = collate(made, objective.fields)
    counted = objective.num_targets(batch.fields)
    batch.fields = {n: torch.from_numpy(v) for n, v in batch.fields.items()}
    expected = {"tlm": [0.0, 0], "mlm": [0.0, 0]}
    with torch.no_grad():
        loss = objective.loss(model, forward(objective, model, batch), batch)
        for example in made:
            kind = "mlm" if len(example["lengths"]) == 2 else "tlm"
            stops = example["lengths"].cumsum()
            for own in map(slice, stops - example["lengths"], stops):
                given = {n: torch.from_numpy(example[n][own]) for n in objective.inputs}
                labels = torch.from_numpy(example["labels"][own])
                logits = model.logits(model((len(labels),), **given))
                total = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
                expected[kind][0] += float(total)
                expected[kind][1] += int((labels != IGNORE).sum())
    term = loss.terms["mlm"]
    assert {name: count for name, (_, count) in loss.parts.items()} == {
        name: count for name, (_, count) in expected.items()
    }
    for name, (total, _) in loss.parts.items():
        assert float(total) == pytest.approx(expected[name][0], rel=1e-5)
    assert (term.num_targets, counted) == (sum(n for _, n in expected.values()), loss.num_targets)
