"""Models with kinds that compute themselves: generation, recipes, checkpoints, what is refused.

Oracle of generation: the same model without a cache.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nlpkit import recipe
from nlpkit.attention.cache import Cache
from nlpkit.attention.choice import AttentionChoice
from nlpkit.attention.forms.chunks import Chunks
from nlpkit.errors import NlpkitError, RecipeError
from nlpkit.generate.settings import Settings
from nlpkit.generate.texts import Writer
from nlpkit.models import bert, gpt2, t5
from nlpkit.models.gpt2.model import Model
from nlpkit.runs.build import model_part
from nlpkit.runs.convert import convert
from nlpkit.runs.open_checkpoint import open_checkpoint
from nlpkit.selftest import leaks, resuming
from tests import _provable, _tiny

CONSTANT = {
    "linear": AttentionChoice.of("linear"),
    "cosformer": AttentionChoice.of("cosformer"),
    "aft simple": AttentionChoice.of("aft", form="simple"),
}
GROWING = {
    "aft full": AttentionChoice.of("aft", rank=4),
    "aft local": AttentionChoice.of("aft", form="local", window=3, rank=4),
    "memory_compressed": AttentionChoice.of("memory_compressed"),
    "lsh": AttentionChoice.of("lsh", chunk=4, buckets=4, rounds=2),
    "relative_keys": AttentionChoice.of("relative_keys", max_distance=3),
    "disentangled": AttentionChoice.of("disentangled", buckets=6, max_distance=20),
}
KINDS = CONSTANT | GROWING
SIZES = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "max_positions": 64}
RECIPE = """\
name: tiny
model: {family: FAMILY, hidden_size: 16, num_layers: 2, num_heads: 2, max_positions: 64,
  attention_dropout: 0.0}
tokenizer: {kind: TOKENIZER, vocab_size: 300}
data: {train: [TRAIN], valid: [VALID]}
objective: {name: OBJECTIVE, max_length: 64}
attention: ATTENTION
train: {steps: 4, tokens_per_step: 256, lr: 1.0e-2, warmup_steps: 1, eval_every: 2, save_every: 2,
  precision: fp32}
"""
GPT2 = RECIPE.replace("FAMILY", "gpt2").replace("TOKENIZER", "bpe").replace("OBJECTIVE", "clm")
BERT = RECIPE.replace("FAMILY", "bert").replace("TOKENIZER", "wordpiece")
BERT = BERT.replace("OBJECTIVE", "mlm")


def _model(*choices: AttentionChoice) -> Model:
    torch.manual_seed(0)
    rates = {"embedding_dropout": 0, "attention_dropout": 0, "residual_dropout": 0}
    config = gpt2.Config(**SIZES, **rates)
    return Model(config.model_copy(update={"attention": choices}), 50).eval()


def _text(length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(50, (length,), generator=torch.Generator().manual_seed(seed))


def _sizes(cache: Cache) -> list[tuple[int, ...]]:
    return [tuple(each.shape) for state in cache._every_state() for each in state.values()]


@pytest.mark.fast_cases(10)
@pytest.mark.parametrize("first", [1, 2, 40])
@pytest.mark.parametrize("name", KINDS)
def test_generation_with_a_cache_equals_without(name: str, first: int) -> None:
    model, ids, cache = _model(KINDS[name]), _text(50), Cache()
    with torch.no_grad():
        states = [model((first,), ids[:first], cache=cache)]
        sizes = _sizes(cache)
        states += [model((1,), ids[i : i + 1], cache=cache) for i in range(first, 50)]
        torch.testing.assert_close(torch.cat(states), model((50,), ids), atol=2e-6, rtol=1e-5)
    if name in CONSTANT:  # memory for a token does not grow, however long the text
        assert _sizes(cache) == sizes


@pytest.mark.parametrize("name", KINDS)
def test_cache_of_sequences_of_other_lengths_is_appended_and_selected(name: str) -> None:
    model, texts = (
        _model(KINDS[name], AttentionChoice.of("causal")),
        [_text(50, n) for n in range(3)],
    )
    with torch.no_grad():
        cache, other = Cache(), Cache()
        model((4, 6), torch.cat([texts[0][:4], texts[1][:6]]), cache=cache)
        model((37,), texts[2][:37], cache=other)
        cache.append(other)  # one is far longer than the others
        cache.select([2, 0, 0])
        new = [texts[2][37:42], texts[0][4:9], texts[0][4:9]]
        states = model((5, 5, 5), torch.cat(new), cache=cache).view(3, 5, -1)
        expected = [model((42,), texts[2][:42])[-5:], model((9,), texts[0][:9])[-5:]]
    assert cache.lengths == [42, 9, 9]
    for state, right in zip(states, [*expected, expected[1]], strict=True):
        torch.testing.assert_close(state, right, atol=2e-6, rtol=1e-5)


def test_a_kind_that_sees_both_ways_cannot_be_cached() -> None:
    with pytest.raises(ValueError, match="tokens see later tokens in this attention"):
        _model(AttentionChoice.of("linear", causal=False))(
            (2,), torch.tensor([1, 2]), cache=Cache()
        )


def test_null_settings_are_those_of_the_family() -> None:
    asked = {"attention": (AttentionChoice.of("cosformer"),)}
    (decoder,) = gpt2.Config(max_positions=77).model_copy(update=asked).kinds
    (encoder,) = bert.Config(max_positions=88).model_copy(update=asked).kinds
    assert decoder == AttentionChoice.of("cosformer", causal=True, max_length=77)
    assert encoder == AttentionChoice.of("cosformer", causal=False, max_length=88)
    assert (decoder.visibility, encoder.visibility) == ("causal", "bidirectional")
    # What is set stays, and a family of any length has no default.
    written = {"attention": (AttentionChoice.of("cosformer", causal=True, max_length=9),)}
    assert bert.Config().model_copy(update=written).kinds == written["attention"]
    why = "the family has no longest sequence; set attention.max_length"
    no_dropout = t5.Config(attention_dropout=0.0)
    assert no_dropout.refuses_attention(AttentionChoice.of("cosformer")) == why
    assert no_dropout.refuses_attention(AttentionChoice.of("cosformer", max_length=9)) is None
    assert no_dropout.refuses_attention(AttentionChoice.of("aft", form="simple")) is None


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run of GPT-2 whose layers have AFT and cosFormer in turn."""
    path = tmp_path_factory.mktemp("run")
    kinds = "{layers: [{kind: aft, rank: 4}, {kind: cosformer}]}"
    _tiny.pretrain(_tiny.write(path, text=GPT2.replace("ATTENTION", kinds)), path / "whole")
    return path


def test_run_keeps_its_kinds_and_writes_the_same_with_a_cache_as_without(run: Path) -> None:
    opened = open_checkpoint(run / "whole", device="cpu")
    choices = (
        AttentionChoice.of("aft", rank=4, causal=True, max_length=64),
        AttentionChoice.of("cosformer", causal=True, max_length=64),
    )
    assert opened.part.config.attention == choices  # written out, nothing is null any more
    greedy = Settings(max_new_tokens=6, min_new_tokens=6)
    model, tokenizer = opened.model, opened.tokenizer
    (written,) = Writer(model, tokenizer, opened.objective, greedy).write(["天地"], batch=2)
    ids, given = tokenizer.encode("天地"), len(tokenizer.encode("天地"))
    with torch.no_grad():
        for _ in range(6):
            logits = model.logits(model((len(ids),), torch.tensor(ids))[-1])
            for banned in (*opened.objective.suppress_tokens, *opened.objective.eos_token_ids):
                logits[banned] = -torch.inf
            ids.append(int(logits.argmax()))
    assert written.outputs[0].text == tokenizer.decode(ids[given:])


def test_convert_says_that_transformers_cannot_open_it(run: Path, tmp_path: Path) -> None:
    said: list[str] = []
    convert(run / "whole", tmp_path / "out", warn=said.append)
    assert said == [
        f"transformers has no gpt2 with attention aft, cosformer: nlpkit opens {tmp_path / 'out'}, "
        "from_pretrained does not (model_type nlpkit-gpt2)"
    ]
    settings = json.loads((tmp_path / "out/config.json").read_text())
    assert settings["model_type"] == "nlpkit-gpt2"
    ours = open_checkpoint(tmp_path / "out", device="cpu").model
    whole = open_checkpoint(run / "whole", device="cpu").model
    assert torch.equal(ours((3,), torch.tensor([1, 2, 3])), whole((3,), torch.tensor([1, 2, 3])))


@pytest.mark.parametrize(
    "kind",
    [
        *("cosformer", "memory_compressed"),
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("linear", "aft")),
    ],
)
def test_encoder_trains_with_the_bidirectional_form(kind: str, tmp_path: Path) -> None:
    path = _tiny.write(tmp_path, text=BERT.replace("ATTENTION", f"{{kind: {kind}}}"))
    _tiny.pretrain(path, tmp_path / "run")
    opened = open_checkpoint(tmp_path / "run", device="cpu")
    assert opened.part.config.can("bidirectional")
    types = torch.zeros(4, dtype=torch.int64)
    texts = (torch.tensor([5, 6, 7, last]) for last in (8, 9))
    with torch.no_grad():  # the first state depends on the last token
        first, other = (opened.model((4,), ids, types)[0] for ids in texts)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("text", "attention", "said"),
    [
        (GPT2, "{kind: linear, causal: false}", r"7:19: attention\.kind: linear is bidirectional,"),
        (BERT, "{kind: linear, causal: true}", r"7:19: attention\.kind: linear is causal, and mlm"),
        (
            GPT2.replace("attention_dropout: 0.0", "attention_dropout: 0.1"),
            "{kind: linear}",
            r"7:19: attention\.kind: linear does not fit the model: it has no probabilities for "
            r"dropout, and model\.attention_dropout is 0\.1; set that to 0\.0",
        ),
        (GPT2, "{kind: aft, form: loca}", r"7:\d+: attention\.form: expected one of full, local"),
        (GPT2, "{kind: memory_compressed, stride: 1}", r"7:\d+: attention\.stride: must be"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_line(tmp_path, text, attention, said) -> None:
    path = _tiny.write(tmp_path, text=text.replace("ATTENTION", attention))
    with pytest.raises(RecipeError, match=said):
        recipe.load(str(path))


def test_texts_longer_than_the_kind_allows_are_refused_before_training(tmp_path: Path) -> None:
    path = _tiny.write(tmp_path, text=GPT2.replace("ATTENTION", "{kind: aft, max_length: 32}"))
    with pytest.raises(NlpkitError, match=r"max_length: 64 is more than attention\.max_length 32"):
        _tiny.pretrain(path, tmp_path / "run")


def test_dropout_fits_a_kind_that_has_probabilities(tmp_path: Path) -> None:
    text = GPT2.replace("attention_dropout: 0.0", "attention_dropout: 0.1")
    path = _tiny.write(tmp_path, text=text.replace("ATTENTION", "{kind: memory_compressed}"))
    assert recipe.load(str(path)).recipe.attention.kind == "memory_compressed"


def _continued(run: Path, folder: Path, attention: str, more: str = "") -> Path:
    """Return a recipe that starts from the run's checkpoint with this attention."""
    path = _tiny.write(folder, text=GPT2.replace("ATTENTION", attention) + more)
    lines = path.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if not line.startswith(("model:", "  attention_", "tokenizer:"))]
    path.write_text("\n".join([*kept, f"init_from: {run}"]) + "\n", encoding="utf-8")
    return path


def test_another_kind_starts_from_the_weights_that_both_have(run: Path, tmp_path: Path) -> None:
    path = _continued(run / "whole", tmp_path, "{layers: [{kind: aft, rank: 8}, {kind: causal}]}")
    part = model_part(recipe.load(str(path)))
    old = open_checkpoint(run / "whole", device="cpu").model.state_dict()
    assert part.start is not None
    assert part.start.keys() == {name for name in old if "attention_tensors" not in name}
    said = [line for line in part.warnings if "attention" in line]
    assert said == [
        "trained with attention aft, cosformer, and the model has aft, causal: what a kind learns "
        "itself is randomly initialized"
    ]
    _tiny.pretrain(path, tmp_path / "run")  # w of rank 8 instead of 4 is new


def test_adapters_of_another_kind_are_refused(run: Path, tmp_path: Path) -> None:
    path = _continued(run / "whole", tmp_path, "{kind: causal}", "lora: {}\n")
    with pytest.raises(NlpkitError, match="attention: adapters are saved without it"):
        model_part(recipe.load(str(path)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("defect", "proof"),
    [
        ("sees later tokens", leaks.find_leaks),
        ("sees other documents", leaks.find_neighbour_leaks),
    ],
)
def test_selftest_finds_a_defect_of_a_fast_form(
    defect: str, proof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Chunks.of.__func__

    def broken(cls, layout, *given, **more):
        made = right(cls, layout, *given, **more)
        if defect == "sees later tokens":
            return replace(made, mask=(made.mask + made.mask.mT).clamp(max=1))
        return replace(made, mask=torch.ones_like(made.mask).tril())

    path = _tiny.write(tmp_path, text=GPT2.replace("ATTENTION", "{kind: linear}"))
    # not as long as a chunk
    with _provable.of_recipe(path, "objective.max_length=40") as bench:
        assert proof(bench.subject)[0]
        monkeypatch.setattr(Chunks, "of", classmethod(broken))
        assert not proof(bench.subject)[0]


@pytest.mark.slow
def test_resumed_run_has_the_hashes_of_an_uninterrupted_one(tmp_path: Path) -> None:
    kind = "{kind: lsh, chunk: 4, buckets: 4, rounds: 2, seed: 3}"
    path = _tiny.write(tmp_path, text=GPT2.replace("ATTENTION", kind))
    with _provable.of_recipe(path) as bench:
        passed, figure = resuming.resume(bench)
    assert passed, figure
