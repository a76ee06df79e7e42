"""CPM-Ant against transformers: logits, losses and gradients with the same weights.

What transformers' own forward can express (its prompt, everything context) goes through it; masks,
spans and other prompts go through its encoder layers with our mask and bias, one by one.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModelForCausalLM, CpmAntConfig, CpmAntForCausalLM

from nlpkit.checkpoints import hf_writing
from nlpkit.errors import FileError
from nlpkit.models.cpm_ant import Config, Prompts
from nlpkit.models.cpm_ant.model import Model, prompt_blocks
from nlpkit.objectives import cpm_ant as objective_file
from tests._formats import from_hf, to_hf
from tests._losses import loss_of, only_term

SMALL = Config(
    hidden_size=32, num_layers=3, num_heads=4, intermediate_size=48, prompt_types=4,
    prompt_length=5, segment_types=4, num_buckets=32, max_distance=40,
)  # fmt: skip
VOCAB = 61
# transformers' norm takes its variance in float32, also where everything else is float64.
TOLERANCE = 2e-6


class _Tokenizer:
    vocab_size, bos_id, eos_id, unk_id = VOCAB, 6, 7, 1


@pytest.fixture
def model() -> Model:
    built = Model(SMALL, VOCAB).double().eval()
    with torch.no_grad():  # large enough for every part to matter
        for parameter in built.parameters():
            parameter.normal_(std=0.3)
    return built


@pytest.fixture
def oracle(model: Model) -> CpmAntForCausalLM:
    settings, tensors = to_hf("cpm_ant", model.config, model.state_dict())
    theirs = CpmAntForCausalLM(CpmAntConfig(**settings)).double().eval()
    missing = theirs.load_state_dict(tensors)
    assert not missing.missing_keys
    assert not missing.unexpected_keys
    return theirs


def _pack(model: Model, tasks: list[int], sizes: list[int]) -> tuple[dict, tuple[int, ...]]:
    """Return a pack of examples of the given tasks and the lengths of its sequences."""
    made = []
    for number, (task, size) in enumerate(zip(tasks, sizes, strict=True)):
        rate = 1.0 if task == 0 else 0.0
        objective = objective_file.Objective(
            objective_file.Config(max_length=200, min_piece=1, infilling_rate=rate),
            _Tokenizer(), model.config,
        )  # fmt: skip
        rng = np.random.default_rng(number)
        made.append(objective.example(rng.integers(10, VOCAB, size), rng))
    batch = {
        name: torch.from_numpy(np.concatenate([np.atleast_1d(e[name]) for e in made]))
        for name in made[0]
    }
    return batch, tuple(len(e["input_ids"]) for e in made)


def _plain(model: Model, theirs: CpmAntForCausalLM, batch: dict, start: int, stop: int):
    """Return the logits of one document by transformers' layers with the spec's mask and bias."""
    encoder = theirs.cpmant.encoder
    ids, segment, context = (batch[n][start:stop] for n in ("input_ids", "segment", "context"))
    blocks = torch.tensor(prompt_blocks(model.config))
    length = model.config.prompt_length
    prompt = ids - VOCAB
    on_disk = VOCAB + blocks[prompt.clamp(min=0) // length] * length + prompt.clamp(min=0) % length
    ids = torch.where(ids < VOCAB, ids, on_disk)
    hidden = theirs.cpmant.input_embedding(ids) + theirs.cpmant.segment_embedding(segment)
    place = torch.arange(stop - start)
    mask = context[None, :] | (~context[:, None] & (place[None, :] <= place[:, None]))
    bias = theirs.cpmant.position_bias(place[None], place[None], segment[None], segment[None])
    hidden, _, _ = encoder(hidden[None], mask[None], bias)
    return theirs.lm_head(hidden[0])


def test_forward_all_context_equals_transformers(model: Model, oracle: CpmAntForCausalLM) -> None:
    ids = torch.randint(10, VOCAB, (23,))
    prompt = VOCAB + SMALL.prompts.generation * SMALL.prompt_length + torch.arange(5)
    n = len(prompt) + len(ids)
    hidden = model(
        (n,), torch.cat([prompt, ids]), torch.tensor([0] * 5 + [2] * 23), torch.arange(n),
        torch.ones(n, dtype=torch.bool),
    )  # fmt: skip
    expected = oracle(input_ids=ids[None], use_cache=False).logits[0]
    torch.testing.assert_close(model.logits(hidden)[5:], expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("backend", ["reference", "sdpa", "cpu_flash"])
def test_pack_of_masked_documents_equals_plain_layers(
    model: Model, oracle: CpmAntForCausalLM, backend: str
) -> None:
    model.backend = backend
    batch, lengths = _pack(model, [0, 1, 1, 0, 1], [9, 30, 1, 70, 12])
    hidden = model(lengths, *(batch[n] for n in objective_file.Objective.inputs))
    logits = model.logits(hidden)
    start = 0
    for length in lengths:
        expected = _plain(model, oracle, batch, start, start + length)
        torch.testing.assert_close(logits[start : start + length], expected, atol=TOLERANCE, rtol=0)
        start += length


def test_forward_in_single_precision_is_within_1e_5(
    model: Model, oracle: CpmAntForCausalLM
) -> None:
    batch, lengths = _pack(model, [0, 1], [40, 40])
    exact = model.logits(model(lengths, *(batch[n] for n in objective_file.Objective.inputs)))
    with torch.no_grad():  # values of ordinary size: logits of order 1
        for parameter in model.parameters():
            parameter.mul_(0.3)
    exact = model.logits(model(lengths, *(batch[n] for n in objective_file.Objective.inputs)))
    single = model.float()
    logits = single.logits(single(lengths, *(batch[n] for n in objective_file.Objective.inputs)))
    torch.testing.assert_close(logits.double(), exact, atol=1e-5, rtol=0)


def test_loss_and_gradients_equal_plain_layers(model: Model, oracle: CpmAntForCausalLM) -> None:
    batch, lengths = _pack(model, [0, 1, 0], [25, 40, 8])
    objective = objective_file.Objective(
        objective_file.Config(max_length=200, min_piece=1), _Tokenizer(), SMALL
    )
    term = only_term(loss_of(objective, model, batch, lengths))
    term.loss_sum.backward()

    expected, start = torch.zeros((), dtype=torch.float64), 0
    for length in lengths:
        logits = _plain(model, oracle, batch, start, start + length)
        labels = batch["labels"][start : start + length]
        expected = expected + F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
        start += length
    expected.backward()
    # the summed loss is reported in single precision
    torch.testing.assert_close(term.loss_sum.double(), expected, rtol=1e-6, atol=0)
    grads = {name: p.grad for name, p in oracle.named_parameters()}
    grads["cpmant.input_embedding.weight"][:VOCAB] += grads["lm_head.weight"]  # tied with us
    _, ours = to_hf("cpm_ant", SMALL, {name: p.grad for name, p in model.named_parameters()})
    for name, grad in ours.items():
        if name != "lm_head.weight":
            torch.testing.assert_close(grad, grads[name], atol=2e-6, rtol=1e-5, msg=name)


def test_changed_document_leaves_its_neighbours_bitwise(model: Model) -> None:
    batch, lengths = _pack(model, [0, 1, 1], [20, 33, 14])
    inputs = [batch[n].clone() for n in objective_file.Objective.inputs]
    before = model(lengths, *inputs)
    first, last = lengths[0], lengths[0] + lengths[1]
    inputs[0][first + 6 : last] = torch.randint(10, VOCAB, (lengths[1] - 6,))
    after = model(lengths, *inputs)
    assert torch.equal(before[:first], after[:first])
    assert torch.equal(before[last:], after[last:])
    assert not torch.equal(before[first:last], after[first:last])


def test_target_is_not_seen_by_what_comes_before_it(model: Model) -> None:
    batch, lengths = _pack(model, [1], [30])
    inputs = [batch[n].clone() for n in objective_file.Objective.inputs]
    before = model(lengths, *inputs)
    inputs[0][-1] = 11 if inputs[0][-1] != 11 else 12
    after = model(lengths, *inputs)
    torch.testing.assert_close(before[:-1], after[:-1], atol=0, rtol=0)
    assert not inputs[3][-1]  # the last token is a target in every tail mask
    assert not torch.equal(before[-1], after[-1])  # and what was changed matters to itself


def test_checkpoint_opens_in_transformers_and_comes_back_exactly(model: Model, tmp_path) -> None:
    model = model.float()
    settings, tensors = to_hf("cpm_ant", SMALL, model.state_dict())
    hf_writing.write(tmp_path, settings, tensors)
    theirs, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(theirs) is CpmAntForCausalLM
    assert not any(report.values()), report
    assert AutoConfig.from_pretrained(tmp_path).dim_ff == 48
    config, state = from_hf("cpm_ant", tmp_path)
    assert config.model_dump(exclude={"init", "head_dim"}) == SMALL.model_dump(
        exclude={"init", "head_dim"}
    )
    assert state.keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(state[name], value), name


def test_prompt_blocks_are_where_transformers_reads_them() -> None:
    # By hand: generation (ours 1) to 2, infilling (ours 0) to 1, the rest (2, 3) to 0 and 3.
    assert prompt_blocks(SMALL) == [1, 2, 0, 3]
    other = SMALL.model_copy(update={"prompts": Prompts(infilling=3, generation=0)})
    assert prompt_blocks(other) == [2, 0, 3, 1]


@pytest.mark.parametrize("with_prompts", [False, True], ids=["", "as transformers 4 saves it"])
def test_foreign_checkpoint_without_our_notes_is_read(tmp_path: Path, with_prompts: bool) -> None:
    theirs = CpmAntForCausalLM(CpmAntConfig(
        vocab_size=VOCAB, hidden_size=32, num_attention_heads=4, dim_head=8, dim_ff=48,
        num_hidden_layers=3, position_bias_num_buckets=32, position_bias_max_distance=40,
        prompt_types=4, prompt_length=5, segment_types=4,
    )).eval()  # fmt: skip
    rows = theirs.cpmant.input_embedding.weight.detach()
    theirs.lm_head.weight.data = (rows if with_prompts else rows[:VOCAB]).clone()
    theirs.save_pretrained(tmp_path)
    assert "nlpkit" not in json.loads((tmp_path / "config.json").read_text())
    config, state = from_hf("cpm_ant", tmp_path)
    table = rows[VOCAB:].unflatten(0, (4, 5))
    assert torch.equal(state["prompt_embedding"].unflatten(0, (4, 5))[1], table[2])
    assert config.num_layers == 3


def test_output_that_is_not_the_table_is_refused(oracle: CpmAntForCausalLM, tmp_path: Path) -> None:
    config = oracle.config.to_dict() | {"tie_word_embeddings": False}
    CpmAntForCausalLM(CpmAntConfig(**config)).save_pretrained(tmp_path)
    with pytest.raises(FileError, match=r"lm_head\.weight is not cpmant\.input_embedding\.weight"):
        from_hf("cpm_ant", tmp_path)
