"""Families with an encoder and a decoder against transformers, on packs of pairs.

T tokens of a target, S of a source; transformers gets rows with padding, the family a pack.
"""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nlpkit.attention.cache import Cache
from nlpkit.contracts.abilities import Prompt
from nlpkit.generate.engine import generate
from nlpkit.generate.rows import Rules
from nlpkit.generate.settings import Settings
from tests._families import oracle
from tests._families.oracle import CLOSE, LENGTHS, VOCAB

SOURCES = (7, 11, 2)  # of the targets of `oracle.LENGTHS`
PAD, END = 0, 1


def sources() -> Tensor:
    """Return the ids of the sources of a pack, without special tokens."""
    draw = torch.Generator().manual_seed(2)
    return torch.randint(5, VOCAB, (sum(SOURCES),), generator=draw)


def rows(flat: Tensor, lengths: tuple[int, ...], value: int = 0) -> Tensor:
    """Return a row for each sequence of these lengths, padded."""
    return nn.utils.rnn.pad_sequence(flat.split(lengths), True, padding_value=value)


def given() -> dict[str, Tensor]:
    """Return the source and the begin of the target, as a model of transformers takes them."""
    ids = sources()
    return {
        "input_ids": rows(ids, SOURCES), "attention_mask": rows(torch.ones_like(ids), SOURCES),
        "decoder_input_ids": oracle.padded(oracle.tokens()),
    }  # fmt: skip


def assert_equal(family: str, theirs: nn.Module, folder: Path) -> Any:
    """Assert that states, logits, loss and gradients of theirs are ours; return our model."""
    theirs.save_pretrained(folder)
    model, loaded = oracle.ours(family, folder)
    assert (loaded.missing, loaded.unexpected) == ((), ())
    labels = oracle.tokens().flip(0)
    expected = theirs(**given(), labels=oracle.padded(labels, -100), output_hidden_states=True)
    hidden = model(LENGTHS, oracle.tokens(), sources(), SOURCES)
    right = oracle.seen(expected.decoder_hidden_states[-1])
    torch.testing.assert_close(hidden, right, **CLOSE)
    torch.testing.assert_close(model.logits(hidden), oracle.seen(expected.logits), **CLOSE)
    total, _ = model.token_loss(hidden, torch.arange(len(labels)), labels)
    loss = total / len(labels)
    torch.testing.assert_close(loss, expected.loss, **CLOSE)
    expected.loss.backward()
    loss.backward()
    oracle.assert_gradients_equal(family, loaded, model, theirs)
    return model


def assert_alignments_equal(model: Any, theirs: nn.Module) -> None:
    """Assert that the weights of each layer are theirs, the mean over heads."""
    with torch.no_grad():
        layers = theirs(**given(), output_attentions=True).cross_attentions
        for number, of_layer in enumerate(layers, 1):
            found = model.alignments(LENGTHS, oracle.tokens(), sources(), SOURCES, number)
            for row, (target, source) in enumerate(zip(LENGTHS, SOURCES, strict=True)):
                expected = of_layer[row, :, :target, :source].mean(0)
                torch.testing.assert_close(found[row], expected, **CLOSE)
        default = model.alignments(LENGTHS, oracle.tokens(), sources(), SOURCES)
        one = model.alignments(LENGTHS, oracle.tokens(), sources(), SOURCES, len(layers) - 1)
    assert all(torch.equal(a, b) for a, b in zip(default, one, strict=True))
    title = f"cross attention of the decoder's layer {len(layers) - 1} of {len(layers)}, mean of 4"
    assert model.alignment_title() == f"{title} heads"
    with pytest.raises(ValueError, match="layer 9 is none of the decoder's 1 to 2"):
        model.alignments(LENGTHS, oracle.tokens(), sources(), SOURCES, 9)


def assert_cached_is_whole(model: Any) -> None:
    """Assert that tokens one by one have the states of whole sequences, alone and together."""
    ids, source = oracle.tokens(), sources()
    with torch.no_grad():
        whole = model(LENGTHS, ids, source, SOURCES)
        first, cache = [t[:3] for t in ids.split(LENGTHS)], Cache()
        states = [model((3, 3, 3), torch.cat(first), source, SOURCES, cache)]
        new = torch.stack([t[3] for t in ids.split(LENGTHS)])
        after = model((1, 1, 1), new, cache=cache)
        for number, (t, s) in enumerate(
            zip(ids.split(LENGTHS), source.split(SOURCES), strict=True)
        ):
            alone = model((len(t),), t, s, (len(s),))
            torch.testing.assert_close(whole.split(LENGTHS)[number], alone, **CLOSE)
            torch.testing.assert_close(states[0][3 * number : 3 * number + 3], alone[:3], **CLOSE)
            torch.testing.assert_close(after[number], alone[3], **CLOSE)


def assert_computes_in_bfloat16(model: Any) -> None:
    """Assert that a copy with 16-bit weights has the same logits, but for rounding, also cached.

    So `generate` and `eval` compute with `--precision bf16`.
    """
    ids, source = oracle.tokens(), sources()
    half = copy.deepcopy(model).to(torch.bfloat16)
    with torch.no_grad():
        expected = model.logits(model(LENGTHS, ids, source, SOURCES))
        cache = Cache()
        found = half.logits(half(LENGTHS, ids, source, SOURCES, cache)).float()
        more = half((1,) * len(LENGTHS), ids[: len(LENGTHS)], cache=cache)
    # bfloat16 has 8 bits; a few per cent after some layers.
    assert (found - expected).norm() < 0.05 * expected.norm()
    assert more.dtype == torch.bfloat16


def prompts(room: int) -> list[Prompt]:
    """Return the sources as prompts, each with its end token."""
    return [
        Prompt(
            {"input_ids": torch.tensor([PAD]).numpy()},
            {},
            torch.tensor([0, *[-1] * (room - 1)]).numpy(),
            torch.empty(0, dtype=torch.int64).numpy(),
            source={"source_ids": torch.cat([each, torch.tensor([END])]).numpy()},
        )
        for each in sources().split(SOURCES)
    ]


def assert_beams_equal(
    model: Any, theirs: nn.Module, *, beams: int, penalty: float, length: int = 12
) -> None:
    """Assert that beam search finds the texts and scores of transformers' `generate`."""
    settings = Settings(max_new_tokens=length, beam=beams, nbest=beams, length_penalty=penalty)
    rules = Rules((END,), (PAD,))
    ours = [*generate(model, prompts(length), settings, rules, batch=3)]
    for number, source in enumerate(sources().split(SOURCES)):
        found = theirs.generate(
            torch.cat([source, torch.tensor([END])])[None], num_beams=beams, do_sample=False,
            num_return_sequences=beams, length_penalty=penalty, max_new_tokens=length,
            bad_words_ids=[[PAD]], decoder_start_token_id=PAD, eos_token_id=END, pad_token_id=PAD,
            forced_eos_token_id=None, return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
        texts = [_before_end(row.tolist()[1:]) for row in found.sequences]
        assert [list(answer.ids) for answer in ours[number]] == texts
        scores = torch.tensor([answer.score for answer in ours[number]])
        torch.testing.assert_close(scores, found.sequences_scores, atol=1e-4, rtol=1e-4)
        # Alone as in the batch.
        (alone,) = generate(model, [prompts(length)[number]], settings, rules)
        assert [answer.ids for answer in alone] == [answer.ids for answer in ours[number]]


def _before_end(ids: list[int]) -> list[int]:
    return ids[: next((n for n, each in enumerate(ids) if each in (PAD, END)), len(ids))]
