"""Hybrid: both kinds of prediction against transformers with masks made by hand."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel, LlamaForCausalLM
from transformers import LlamaConfig as TheirLlama

from nlpkit.attention.choice import AttentionChoice
from nlpkit.contracts.batch import IGNORE
from nlpkit.data.pack import collate
from nlpkit.models.gpt2 import Config as Gpt2Config
from nlpkit.models.gpt2.model import Model as Gpt2
from nlpkit.models.llama import Config as LlamaConfig
from nlpkit.models.llama.model import Model as Llama
from nlpkit.objectives import hybrid
from nlpkit.objectives.examples.text import forward
from tests._formats import to_hf

VOCAB, MASK = 61, 60
HYBRID = {"attention": (AttentionChoice.of("hybrid"),)}
SIZES = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_positions": 40}
GPT2 = Gpt2Config(**SIZES).model_copy(update=HYBRID)
LLAMA = LlamaConfig(**SIZES, intermediate_size=48, tie=True).model_copy(update=HYBRID)


class _Tokenizer:
    vocab_size, bos_id, eos_id, unk_id, pad_id = VOCAB, None, 0, 1, None
    special_ids = (0, 1, MASK)

    def special_id(self, token: str) -> int | None:
        return {"[MASK]": MASK}.get(token)


def _objective(config: object = GPT2, **settings: object) -> hybrid.Objective:
    return hybrid.Objective(hybrid.Config(max_length=20, **settings), _Tokenizer(), config)


def _examples(objective: hybrid.Objective, count: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [objective.example(rng.integers(2, MASK, 13), rng) for _ in range(count)]


def _pair(config: object):
    """Return our model, and transformers' with the same weights."""
    torch.manual_seed(0)
    name = "gpt2" if config is GPT2 else "llama"
    model = (Gpt2 if config is GPT2 else Llama)(config, VOCAB).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    settings, tensors = to_hf(name, config, model.state_dict())
    of_config = {"gpt2": (GPT2LMHeadModel, GPT2Config), "llama": (LlamaForCausalLM, TheirLlama)}
    theirs, their_config = of_config[name]
    oracle = theirs(their_config(**settings, attn_implementation="eager")).eval()
    report = oracle.load_state_dict(tensors, strict=False)
    assert not report.unexpected_keys
    return model, oracle


def _log_probs(oracle, ids: np.ndarray, full: bool) -> torch.Tensor:
    """Return (T, V) of transformers' model, under a mask (1, 1, T, T) made by hand."""
    seen = torch.ones(len(ids), len(ids), dtype=torch.bool)
    bias = torch.zeros(1, 1, *seen.shape).masked_fill(~(seen if full else seen.tril()), -1e30)
    with torch.no_grad():
        logits = oracle(torch.from_numpy(ids)[None], attention_mask=bias).logits[0]
    return F.log_softmax(logits, dim=-1)


@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
@pytest.mark.parametrize("backend", ["reference", "sdpa", "auto"])
def test_losses_of_a_mixed_pack_equal_transformers_under_masks_made_by_hand(config, backend):
    model, oracle = _pair(config)
    model.backend = backend
    objective = _objective(config, share=0.4)
    made = _examples(objective, 12)
    batch = collate(made, objective.fields)
    batch.fields = {name: torch.from_numpy(value) for name, value in batch.fields.items()}
    loss = objective.loss(model, forward(objective, model, batch), batch)
    sums, counts = {"clm": 0.0, "mntp": 0.0}, {"clm": 0, "mntp": 0}
    for example in made:
        full = bool(example["full"][0])
        log_probs = _log_probs(oracle, example["input_ids"], full)
        for row in np.flatnonzero(example["labels"] != IGNORE):
            kind = "mntp" if full else "clm"
            sums[kind] -= float(log_probs[row, example["labels"][row]])
            counts[kind] += 1
    assert min(counts.values()) > 0
    for name, term in loss.terms.items():
        assert term.num_targets == counts[name]
        assert float(term.loss_sum.detach()) == pytest.approx(sums[name], rel=1e-5)
    assert [term.weight for term in loss.terms.values()] == pytest.approx([0.6, 0.4])


@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
@pytest.mark.parametrize("method", ["log-probability", "mntp"])
def test_scores_equal_a_plain_loop_with_transformers(config, method) -> None:
    model, oracle = _pair(config)
    objective = _objective(config)
    text = np.random.default_rng(1).integers(2, MASK, 9)
    found = np.full(9, np.nan)
    for each in objective.score_text(text, np.arange(9), 0, method):
        inputs = {name: torch.from_numpy(value) for name, value in each.inputs.items()}
        with torch.no_grad():
            logits = model.logits(model((len(inputs["input_ids"]),), **inputs))
        found[each.targets] = F.log_softmax(logits, -1)[each.rows, text[each.targets]]
    whole = np.concatenate([[0], text])  # behind the end of another document
    for place in range(1, 10):
        ids = whole.copy()
        if method == "mntp":
            ids[place] = MASK
        wanted = _log_probs(oracle, ids, method == "mntp")[place - 1, whole[place]]
        assert found[place - 1] == pytest.approx(float(wanted), abs=1e-4)


def test_share_and_rate_follow_the_run() -> None:
    objective = _objective(share=0.8, final_share=0.2, rate=0.4, final_rate=0.1)
    made = _examples(objective, 2000)
    for progress, share, rate in ((0.0, 0.8, 0.4), (0.5, 0.5, 0.25), (1.0, 0.2, 0.1)):
        now = [objective.at_progress(example, progress) for example in made]
        masked = [example for example in now if example["full"][0]]
        assert len(masked) / len(now) == pytest.approx(share, abs=0.04)
        chosen = np.concatenate([example["labels"] != IGNORE for example in masked])
        assert chosen.mean() == pytest.approx(rate, abs=0.03)
        for example in masked:  # each target within the inputs is hidden there
            hidden = example["labels"][:-1] != IGNORE
            assert (example["input_ids"][1:][hidden] == MASK).all()


def test_held_out_loss_has_the_weights_of_the_end_of_the_run() -> None:
    # Held-out examples are those of the end at every evaluation (`held_out_batches`). With weights
    # that follow the run, the same model would have another loss at each one.
    model, _ = _pair(GPT2)
    objective = _objective(share=0.8, final_share=0.2)
    batch = collate(_examples(objective, 6), objective.fields)
    batch.fields = {name: torch.from_numpy(value) for name, value in batch.fields.items()}

    def weights(progress: float) -> list[float]:
        batch.progress = progress
        terms = objective.loss(model, forward(objective, model, batch), batch).terms
        return [term.weight for term in terms.values()]

    assert weights(0.0) == weights(0.5) == weights(1.0) == pytest.approx([0.8, 0.2])
    model.train()
    assert weights(0.0) == pytest.approx([0.2, 0.8])
    assert weights(0.5) == pytest.approx([0.5, 0.5])
