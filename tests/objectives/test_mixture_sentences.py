"""A mixture in which one member cuts text at sentences, or reads pairs of texts.

Oracles: each member alone, hand arithmetic.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from nlpkit import recipe, selftest
from nlpkit.contracts.batch import Batch
from nlpkit.data.loader import Examples
from nlpkit.data.pack import collate, pack_examples
from nlpkit.errors import RecipeError, UsageError
from nlpkit.models import bert
from nlpkit.models.bert import model as bert_model
from nlpkit.objectives import mixture, mlm
from nlpkit.objectives.examples.text import forward
from nlpkit.objectives.several.combined import Combined
from nlpkit.selftest import batching, texts
from nlpkit.train.log import QUIET, Log
from nlpkit.train.signals import StopFlag
from tests import _tiny
from tests._masked import MODEL, document, tokenizer

RECIPE = """\
name: tiny
model: {family: bert, hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 32,
  max_positions: 64}
tokenizer: {kind: wordpiece, vocab_size: 120, min_frequency: 1}
data: {train: [TRAIN], valid: [VALID]}
objective: {name: mixture, of: [{name: sop, max_length: 30}, {name: mlm, max_length: 30}]}
train: {steps: 4, tokens_per_step: 256, tokens_per_batch: 128, lr: 1.0e-2, warmup_steps: 1,
  precision: fp32, eval_every: 2, save_every: 2}
"""


def _mixed(*members: dict) -> mixture.Objective:
    of = [mixture.Member.model_validate(member) for member in members]
    return mixture.Objective(mixture.Config(of=of), tokenizer(), MODEL)


SOP, MLM = {"name": "sop", "max_length": 30}, {"name": "mlm", "max_length": 30, "weight": 3.0}


class _Corpus:
    """Twelve documents of a few sentences."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.documents = [document(int(rng.integers(2, 7)), rng) for _ in range(12)]
        self.lengths = np.array([len(each) for each in self.documents])
        flags = np.concatenate([each.has("sentence_start") for each in self.documents])
        self.sentences = np.flatnonzero(flags)


def test_members_take_the_pieces_of_the_one_that_cuts_at_sentences() -> None:
    corpus = _Corpus()
    mixed = _mixed(MLM, SOP)
    assert Combined([mixed], [1.0]).cut_at == mixed.cut_at == "sentence_start"
    spans = mixed.spans_cut_at(corpus.lengths, corpus.sentences)
    alone = mixed.members[1].spans_cut_at(corpus.lengths, corpus.sentences)
    assert (spans.document == alone.document).all()
    assert (spans.stop == alone.stop).all()
    sizes = spans.stop - spans.start
    # [CLS] A [SEP] B [SEP] has one token more than [CLS] A B [SEP].
    assert (mixed.length(sizes) == sizes + 3).all()
    assert mixed.max_shrink == 1
    made = []
    for number, (begin, stop) in enumerate(zip(spans.start, spans.stop, strict=True)):
        whole = corpus.documents[spans.document[number]]
        piece = type(whole)(whole.ids[begin:stop], whole.token_flags[begin:stop])
        made.append(mixed.example(piece, np.random.default_rng(number)))
        member = int(made[-1]["member"][0])
        assert len(made[-1]["input_ids"]) == stop - begin + (2, 3)[member]
    assert {int(each["member"][0]) for each in made} == {0, 1}
    batch = collate(made, mixed.fields)
    counts = mixed.num_targets(batch.fields)
    assert counts["sop"] == sum(int(each["member"][0]) for each in made)
    assert counts["mlm"] == int((batch.fields["labels"] >= 0).sum()) > 0


def test_masks_behind_a_mixture_of_pairs_are_the_text_whose_characters_are_known() -> None:
    mixed = _mixed({"name": "sop", "max_length": 30}, {"name": "reorder", "max_length": 99})
    listed = Combined([mixed, mlm.Objective(mlm.Config(), tokenizer(), MODEL)], [1.0, 1.0])
    config = bert.Config(hidden_size=8, num_layers=1, num_heads=1, intermediate_size=8)
    model = bert_model.Model(config, tokenizer().vocab_size)
    model.objective_heads = torch.nn.ModuleDict(listed.heads())
    rng = np.random.default_rng(0)
    batch = pack_examples(listed, [listed.example(document(4, rng), rng) for _ in range(4)])
    fields = {name: torch.from_numpy(each) for name, each in batch.fields.items()}
    batch = Batch(fields, batch.lengths)
    loss = listed.loss(model, forward(listed, model, batch), batch)
    assert len(loss.targets_of_text(fields["labels"])) == loss.terms["mlm"].num_targets > 0


def test_member_that_has_no_room_for_the_pieces_is_refused_with_the_number() -> None:
    corpus = _Corpus()
    mixed = _mixed(SOP, MLM | {"max_length": 20})
    with pytest.raises(UsageError, match=r"mlm takes the pieces of sop.* has max_length 20"):
        mixed.spans_cut_at(corpus.lengths, corpus.sentences)
    two = _mixed(SOP, SOP | {"alias": "short", "max_length": 20})
    with pytest.raises(UsageError, match="sop and short cut documents differently"):
        two.spans_cut_at(corpus.lengths, corpus.sentences)


def test_selftest_proves_the_members_and_that_batches_are_as_planned(tmp_path: Path) -> None:
    path = _tiny.write(tmp_path, text=RECIPE)
    for name in ("train.txt", "valid.txt"):
        lines = (tmp_path / name).read_text(encoding="utf-8").splitlines()
        cut = ["".join(f"{line[at : at + 7]}。" for at in range(0, len(line), 7)) for line in lines]
        (tmp_path / name).write_text("\n".join(cut) + "\n", encoding="utf-8")
    with selftest.bench(
        recipe.load(str(path)), device="cpu", log=Log(QUIET), stop=StopFlag()
    ) as bench:
        mixed = bench.subject.objective
        assert texts.count_members(bench.subject, mixed)[0]
        proofs = selftest._list_member_proofs(bench.subject, mixed)
        found = {name: proofs[name]() for name in ("sop: unmasking", "mlm: unmasking")}
        assert all(passed for passed, _ in found.values()), found
        assert batching.check_batches(bench)[0]
        examples: Examples = bench.subject.examples
        mixed.max_shrink = 0  # as if the plan were exact
        passed, figure = batching.check_batches(bench)
        assert not passed
        assert "was planned as" in figure
        assert len(examples) > 10


@pytest.mark.parametrize("order", [0, 1])
def test_translation_beside_mlm_is_refused_with_the_setting_that_does_it(
    tmp_path: Path, order: int
) -> None:
    members = ["{name: tlm, max_length: 30}", "{name: mlm, max_length: 30}"]
    mixed = ", ".join(reversed(members) if order else members)
    text = RECIPE.replace("{name: sop, max_length: 30}, {name: mlm, max_length: 30}", mixed)
    with pytest.raises(RecipeError, match=r"tlm masks texts of one language, too: set monolingual"):
        recipe.load(str(_tiny.write(tmp_path, text=text)))
