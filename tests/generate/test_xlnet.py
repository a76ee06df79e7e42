"""Text written and blanks filled by XLNet, against the model of transformers with its masks.

T tokens of a sequence, M of them new.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from nlpkit import cli
from nlpkit.contracts.abilities import Filling, Generative, Prompt
from nlpkit.generate.engine import generate
from nlpkit.generate.rows import Rules
from nlpkit.generate.settings import Settings
from nlpkit.models.xlnet import Config
from nlpkit.models.xlnet.model import Model
from nlpkit.objectives import plm
from tests import _masked, _tiny
from tests._families import oracle
from tests._families.oracle import CLOSE

SIZES = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 48}
TOKENIZER = _masked.tokenizer().extended(plm.Objective.special_tokens(None, Config(**SIZES)))
VOCAB = TOKENIZER.vocab_size
TEXTS = ([9, 12, 8, 15, 9, 20], [11], [14, 10, 9])


def _bound(config: Config | None = None, **settings) -> plm.Objective:
    return plm.Objective(plm.Config(**settings), TOKENIZER, config or Config(**SIZES))


@pytest.fixture(scope="module")
def theirs() -> torch.nn.Module:
    config = transformers.XLNetConfig(
        vocab_size=VOCAB, d_model=32, n_layer=2, n_head=4, d_inner=48, bos_token_id=None,
        eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model = oracle.drawn("XLNetLMHeadModel", config)
    with torch.no_grad():  # so that tokens depend on what stands before them, not on the biases
        for name, parameter in model.named_parameters():
            if "layer_norm" in name or name == "lm_loss.bias":
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)
            elif "rel_attn" in name:
                parameter.mul_(3.0)
    return model


@pytest.fixture(scope="module")
def model(theirs: torch.nn.Module, tmp_path_factory) -> Model:
    from nlpkit.checkpoints import hf_layout, hf_model

    folder = tmp_path_factory.mktemp("xlnet")
    theirs.save_pretrained(folder)
    settings, tensors = hf_layout.read(folder)
    loaded = hf_model.from_hf("xlnet", folder, settings, tensors)
    model = Model(loaded.config, VOCAB).eval()
    model.load_state_dict(loaded.state)
    return model


def _by_masks(theirs: torch.nn.Module, prompt: Prompt, allowed: np.ndarray) -> list[int]:
    """Return the greedy tokens of transformers' model: a whole pass for each new token.

    What is given sees all that is given, a new token also the new ones up to itself; the query at
    the next position sees all of them. The dummy there is seen by nobody, as in `generate`.
    """
    count = len(prompt.slots["position"])
    size = len(prompt.given["position"]) + count
    ids, types, rank = np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(size, np.int64)
    for name, into in (("input_ids", ids), ("token_type_ids", types)):
        into[prompt.given["position"]] = prompt.given[name]
    slots = prompt.slots["position"]
    rank[slots] = 1 + np.arange(count)
    written = []
    for number, place in enumerate(slots):
        # Of the new tokens, those after this one do not exist yet: nobody sees them.
        hides = (rank[None] > rank[:, None]) | (rank[None] > number)
        mapping = np.zeros((1, 1, size), np.float32)
        mapping[0, 0, place] = 1
        with torch.no_grad():
            logits = theirs(
                torch.from_numpy(ids)[None], token_type_ids=torch.from_numpy(types)[None],
                perm_mask=torch.from_numpy(hides.astype(np.float32))[None],
                target_mapping=torch.from_numpy(mapping), use_mems=False,
            ).logits[0, 0]  # fmt: skip
        ids[place] = int(logits.masked_fill(~torch.from_numpy(allowed), -torch.inf).argmax())
        written.append(int(ids[place]))
    return written


def _rules(objective: plm.Objective) -> Rules:
    return Rules(objective.eos_token_ids, objective.suppress_tokens, None)


def _allowed(objective: plm.Objective) -> np.ndarray:
    allowed = np.ones(VOCAB, np.bool_)
    allowed[[*objective.suppress_tokens]] = False
    return allowed


def _prompts(objective: plm.Objective, room: int) -> list[Prompt]:
    continued = [objective.continue_text(text, room) for text in TEXTS]
    filled = [
        objective.fill_blanks([TEXTS[0], TEXTS[2], []], [2, room]),
        objective.fill_blanks([[], []], [1]),
        objective.fill_blanks([[], TEXTS[1]], [3]),
    ]
    return continued + filled


def _ids(answers: Sequence) -> list[list[int]]:
    return [list(each[0].ids) for each in answers]


def test_greedy_tokens_are_those_of_transformers_alone_and_in_a_batch(theirs, model) -> None:
    objective = _bound()
    prompts, rules = _prompts(objective, 5), _rules(objective)
    expected = [_by_masks(theirs, prompt, _allowed(objective)) for prompt in prompts]
    assert len({tuple(each) for each in expected}) == len(expected)
    assert len({token for each in expected for token in each}) > 6
    settings = Settings(max_new_tokens=5)
    for batch in (1, 2, 6):
        assert _ids(generate(model, prompts, settings, rules, batch=batch)) == expected


def test_first_token_is_that_of_transformers_generate(theirs, model) -> None:
    objective = _bound()
    bad = [[token] for token in objective.suppress_tokens]
    for text in TEXTS:
        found = theirs.generate(
            torch.tensor([text]), max_new_tokens=1, do_sample=False, bad_words_ids=bad,
            use_mems=False,
        )  # fmt: skip
        prompt = objective.continue_text(text, 1)
        (answers,) = generate(model, [prompt], Settings(max_new_tokens=1), _rules(objective))
        assert list(answers[0].ids) == found[0, len(text) :].tolist()


def _whole(model: Model, prompt: Prompt, ids: Sequence[int]) -> torch.Tensor:
    """Return the states of all tokens of a prompt and its slots, without a cache."""
    given, slots = prompt.given, {**prompt.slots, "input_ids": np.array(ids, np.int64)}
    inputs = {name: torch.from_numpy(np.concatenate([given[name], slots[name]])) for name in given}
    with torch.no_grad():
        return model((len(inputs["input_ids"]),), **inputs)


@pytest.mark.parametrize("memory", [0, 3], ids=["whole", "in parts with a memory"])
def test_cached_is_uncached_and_scores_are_log_probabilities(memory: int) -> None:
    config = Config(**SIZES, memory=memory, init_std=0.3)
    torch.manual_seed(0)
    model = Model(config, VOCAB).eval()
    objective = _bound(config, **({"part_length": 4} if memory else {}))
    settings = Settings(max_new_tokens=6, beam=3, nbest=3, length_penalty=0.0)
    greedy = Settings(max_new_tokens=6)
    # Blanks in texts of several parts are refused.
    prompts = _prompts(objective, 6) if not memory else [
        *(objective.continue_text(text, 6) for text in TEXTS),
        objective.fill_blanks([[], TEXTS[1]], [1]),
    ]  # fmt: skip
    rules = _rules(objective)
    forbidden = [*objective.suppress_tokens]
    for chosen in (greedy, settings):
        found = list(generate(model, prompts, chosen, rules, batch=4))
        for prompt, answers in zip(prompts, found, strict=True):
            for answer in answers:
                hidden = _whole(model, prompt, answer.ids)
                asking = [*prompt.given["next_position"], *prompt.slots["next_position"]]
                logits = model.logits(hidden[torch.tensor(asking) >= 0])
                each = logits.log_softmax(-1).gather(1, torch.tensor(answer.ids)[:, None])
                assert answer.score == pytest.approx(each.sum().item(), abs=1e-4)
                if chosen is greedy:
                    logits[:, forbidden] = -torch.inf
                    assert logits.argmax(1).tolist() == list(answer.ids)


def test_parts_see_only_their_memory() -> None:
    """What is farther back than the memory of a part changes none of its tokens."""
    config = Config(**SIZES | {"num_layers": 1}, memory=2, init_std=0.3)
    torch.manual_seed(0)
    own = Model(config, VOCAB).eval()
    objective = _bound(config, part_length=4)
    # Positions 4 to 7 are a part; they see 2 and 3 of the part before.
    logits = []
    for text in ([9, 12, 8, 15], [20, 21, 8, 15], [9, 12, 8, 16]):
        prompt = objective.continue_text(text, 2)
        hidden = _whole(own, prompt, [10, 11])
        logits.append(own.logits(hidden[3:5]))
    torch.testing.assert_close(logits[0], logits[1], **CLOSE)
    assert not torch.allclose(logits[0], logits[2], atol=1e-3)


def test_new_tokens_do_not_depend_on_the_length_asked_for(model) -> None:
    objective = _bound()
    found = [
        _ids(generate(model, [objective.continue_text(TEXTS[0], n)], Settings(), _rules(objective)))
        for n in (3, 6)
    ]
    assert found[0][0] == found[1][0][:3]


def test_objective_says_what_it_cannot_write() -> None:
    objective = _bound(max_length=12)
    assert isinstance(objective, Generative)
    assert isinstance(objective, Filling)
    with pytest.raises(ValueError, match="the text is empty, and no token begins a text"):
        objective.continue_text([], 4)
    long = objective.continue_text(list(range(8, 24)), 4)
    assert (long.cut, long.text.tolist()) == (8, list(range(16, 24)))
    with pytest.raises(ValueError, match="11 tokens from the first blank to the last; at most 10"):
        objective.fill_blanks([[9], []], [11])
    config = Config(**SIZES, memory=2)
    with pytest.raises(ValueError, match="blanks are filled in texts of at most 2 tokens"):
        _bound(config, part_length=4).fill_blanks([[9, 8], []], [2])


RECIPE = """\
name: tiny
model: {family: xlnet, hidden_size: 32, num_layers: 1, num_heads: 2, intermediate_size: 48}
tokenizer: {kind: wordpiece, vocab_size: 120, min_frequency: 1}
data: {train: [TRAIN], valid: [VALID]}
objective: {name: plm, max_length: 48}
train: {steps: 4, tokens_per_step: 512, tokens_per_batch: 512, lr: 1.0e-3, warmup_steps: 2,
  precision: fp32, eval_every: 4, save_every: 4}
"""


def test_generate_writes_and_fills(tmp_path: Path, capsys) -> None:
    path = _tiny.write(tmp_path, documents=30, text=RECIPE)
    _tiny.pretrain(path, tmp_path / "run")
    file = tmp_path / "in.txt"
    file.write_text("天地人\n山<blank:2>花<blank>\n\n", "utf-8")
    command = ["generate", str(tmp_path / "run"), str(file), "--max-new-tokens", "4"]
    assert cli.run(command) == 0
    out, err = capsys.readouterr()
    lines = out.split("\n")
    assert len(lines[0].replace(" ", "")) >= 4
    filled = lines[1].replace(" ", "")
    assert filled.startswith("山")
    assert "花" in filled
    assert lines[2] == ""
    assert "input 3: the text is empty, and no token begins a text; its output is empty" in err
    for more in (["--beam", "2", "--nbest", "2"], ["--top-k", "3", "--seed", "5"]):
        assert cli.run([*command, *more]) == 0
        capsys.readouterr()
