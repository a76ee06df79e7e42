"""Some states of an encoder, without the others: the same as those of the whole pack."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nlpkit.attention.cache import Cache
from nlpkit.attention.choice import AttentionChoice
from nlpkit.models import families
from nlpkit.models.layers import encoder
from nlpkit.objectives import mlm
from nlpkit.runs import likelihood as scores
from nlpkit.runs.likelihood import Likelihood
from tests._attention import KIND_SETTINGS
from tests._families import oracle
from tests._losses import all_states
from tests._masked import tokenizer

SIZES = {
    "hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 48,
    "max_positions": 64,
}  # fmt: skip
NAMES = ("albert", "bert", "distilbert", "roberta", "xlm")


def _model(name: str, vocab_size: int = oracle.VOCAB, **more):
    torch.manual_seed(0)
    made = families.load(name).Config
    config = made(**{key: size for key, size in SIZES.items() if key in made.model_fields}, **more)
    model = families.load_model(name).Model(config, vocab_size).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def _inputs(model) -> dict[str, torch.Tensor]:
    given = {"input_ids": oracle.tokens(), "token_type_ids": oracle.types()}
    return {name: given[name] for name in model.config.inputs}


@pytest.mark.parametrize(
    "rows", [[0, 3, 3, 10, 13, 24], [2, 9, 20], [0, 24], [12, 3, 20]],
    ids=["several", "one in each sequence", "a sequence without", "in another order"],
)  # fmt: skip
@pytest.mark.parametrize("name", NAMES)
def test_states_of_rows_are_those_of_the_whole_pack(name: str, rows: list[int]) -> None:
    model = _model(name)
    index = torch.tensor(rows)
    with torch.no_grad():
        whole = model(oracle.LENGTHS, **_inputs(model))
        found = model(oracle.LENGTHS, **_inputs(model), rows=index)
    torch.testing.assert_close(found, whole[index], **oracle.CLOSE)


@pytest.mark.parametrize(
    "choice",
    [
        AttentionChoice.of("group", groups=3),
        AttentionChoice.of("block_local", block=4),
        AttentionChoice.of("relative_bias", num_buckets=8, max_distance=10),
    ],
    ids=lambda choice: choice.kind,
)
def test_rows_have_their_own_place_in_attention_that_reads_it(choice: AttentionChoice) -> None:
    model = _model("bert", attention=(choice,))
    index = torch.tensor([1, 7, 8, 10, 12, 15, 24])
    with torch.no_grad():
        whole = model(oracle.LENGTHS, **_inputs(model))
        found = model(oracle.LENGTHS, **_inputs(model), rows=index)
    torch.testing.assert_close(found, whole[index], **oracle.CLOSE)


def test_rows_have_their_own_range_in_attention_that_reads_fields() -> None:
    model = _model("bert", attention=(AttentionChoice.of("seen_range"),))
    position = torch.cat([torch.arange(n) for n in oracle.LENGTHS])
    ranges = {"first": torch.zeros_like(position), "last": position}  # what is to the left
    index = torch.tensor([0, 4, 11, 12, 18])
    with torch.no_grad():
        whole = model(oracle.LENGTHS, **_inputs(model), **ranges)
        found = model(oracle.LENGTHS, **_inputs(model), **ranges, rows=index)
    torch.testing.assert_close(found, whole[index], **oracle.CLOSE)


@pytest.mark.parametrize("others", [(), ("full",)], ids=["every layer", "one of two"])
def test_without_ranges_a_token_sees_its_whole_sequence(others: tuple[str, ...]) -> None:
    kinds = tuple(map(AttentionChoice.of, ("seen_range", *others)))
    model, plain = _model("bert", attention=kinds), _model("bert")
    plain.load_state_dict(model.state_dict())
    with torch.no_grad():
        found = model(oracle.LENGTHS, **_inputs(model))
        expected = plain(oracle.LENGTHS, **_inputs(plain))
    torch.testing.assert_close(found, expected, **oracle.CLOSE)


@pytest.mark.parametrize("family", ["albert", "bert"])
@pytest.mark.parametrize("rule", ["question", "answer", "type"])
def test_without_token_types_all_texts_are_single_and_of_the_first_type(
    family: str, rule: str
) -> None:
    """docs/attention.md: in a sequence of one text no token is in a question or an answer."""
    window = {"window": 4, "causal": False}
    same = AttentionChoice.of("longformer", **window, global_tokens="none")
    kinds = (
        AttentionChoice.of("longformer", **window, global_tokens=rule),
        AttentionChoice.of("full") if rule == "type" else same,
    )
    found, expected = (_model(family, attention=(kind,), type_vocab_size=1) for kind in kinds)
    ids = oracle.tokens()
    with torch.no_grad():
        torch.testing.assert_close(
            found(oracle.LENGTHS, ids), expected(oracle.LENGTHS, ids), **oracle.CLOSE
        )


def test_last_layer_computes_the_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model("bert")
    sizes: list[int] = []
    monkeypatch.setattr(
        encoder.Layer,
        "forward",
        _counted(encoder.Layer.forward, sizes),
    )
    with torch.no_grad():
        model(oracle.LENGTHS, **_inputs(model), rows=torch.tensor([2, 9, 20]))
    assert sizes == [sum(oracle.LENGTHS), 3]


def _counted(forward, sizes: list[int]):
    def counting(*arguments):
        made = forward(*arguments)
        sizes.append(len(made))
        return made

    return counting


@pytest.mark.parametrize("name", NAMES)
def test_scores_of_texts_are_those_of_all_states(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = tokenizer()
    words = words.extended(("<s>", "</s>", "<mask>"))
    model = _model(name, words.vocab_size)
    objective = mlm.Objective(mlm.Config(max_length=32), words, model.config)
    opened = SimpleNamespace(
        model=model, tokenizer=words, objective=objective, notes={}, path="none"
    )
    texts = ["a model predicts what it does not see.", "it sees.", "predicts, what"]
    likelihood = Likelihood(opened, tokens_per_batch=50)
    found = likelihood.compute_log_probs(likelihood.encode(texts))
    monkeypatch.setattr(
        scores, "forward", lambda objective, model, batch, rows: all_states(objective, model, batch)
    )
    for ours, expected in zip(
        found, likelihood.compute_log_probs(likelihood.encode(texts)), strict=True
    ):
        np.testing.assert_allclose(ours, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["albert", "bert", "roberta", "xlm"])
@pytest.mark.parametrize(
    "kind", ["causal", "fixed", "local_window", "relative_bias_causal", "strided"]
)
def test_states_that_continue_a_cache_are_those_of_the_whole(family: str, kind: str) -> None:
    _compare_with_cache(family, AttentionChoice.of(kind, **KIND_SETTINGS.get(kind, {})))


def test_text_that_continues_a_cache_stays_single() -> None:
    answer = AttentionChoice.of("longformer", window=4, causal=True, global_tokens="answer")
    _compare_with_cache("bert", answer, type_vocab_size=1)


def _compare_with_cache(family: str, kind: AttentionChoice, **more: int) -> None:
    model = _model(family, attention=(kind,), **more)
    ids = torch.randint(3, 40, (2, 9))
    with torch.no_grad():
        whole = model([9, 9], ids.flatten()).view(2, 9, -1)
    cache = Cache()
    for first, last in ((0, 6), (6, 7), (7, 8), (8, 9)):
        with torch.no_grad():
            states = model([last - first] * 2, ids[:, first:last].flatten(), cache=cache)
        expected = whole[:, first:last]
        torch.testing.assert_close(states.view(expected.shape), expected, **oracle.CLOSE)
