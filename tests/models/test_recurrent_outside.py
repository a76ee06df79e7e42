"""A recurrent family of a user's own under nlpkit's own objective `clm`.

Oracle: torch.nn.LSTM, a sequence at a time.
"""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from nlpkit import recipe
from nlpkit.attention.cache import Cache
from nlpkit.errors import RecipeError, UsageError
from nlpkit.generate.engine import generate
from nlpkit.generate.rows import Rules
from nlpkit.generate.settings import Settings
from nlpkit.generate.texts import Writer
from nlpkit.plan import describe, draw_mask, make
from nlpkit.runs.open_checkpoint import open_checkpoint
from nlpkit.train.log import QUIET, Log
from tests import _tiny
from tests.parts.recurrent import Config
from tests.parts.recurrent.model import Model

RECIPE = """\
name: tiny
model: {family: tests.parts.recurrent, hidden_size: 16, num_layers: 2, dropout: 0.1}
tokenizer: {kind: bpe, vocab_size: 300}
data: {train: [TRAIN], valid: [VALID]}
objective: {name: clm, max_length: 64}
train: {steps: 6, tokens_per_step: 256, tokens_per_batch: 128, lr: 1.0e-2, warmup_steps: 2,
  eval_every: 3, save_every: 3, precision: fp32}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run of the recipe, whole."""
    path = tmp_path_factory.mktemp("recurrent")
    _tiny.pretrain(_tiny.write(path, text=RECIPE), path / "whole")
    return path


def _model() -> Model:
    torch.manual_seed(0)
    return Model(Config(hidden_size=8, num_layers=2), 40).eval()


def _alone(model: Model, ids: torch.Tensor) -> torch.Tensor:
    """Return torch's own states of one sequence."""
    return model.lstm(F.embedding(ids, model.token_embedding)[:, None])[0][:, 0]


@pytest.mark.parametrize("lengths", [(5,), (3, 7, 1, 7, 4), (1, 2, 3), (3, 2, 1)])
def test_pack_is_the_lstm_sequence_by_sequence(lengths: tuple[int, ...]) -> None:
    model = _model()
    texts = [torch.randint(40, (n,)) for n in lengths]
    with torch.no_grad():
        hidden = model(lengths, torch.cat(texts))
        expected = torch.cat([_alone(model, ids) for ids in texts])
    torch.testing.assert_close(hidden, expected, atol=1e-6, rtol=1e-5)


def test_states_are_kept_selected_and_appended() -> None:
    model = _model()
    texts = [torch.randint(40, (9,)) for _ in range(3)]
    with torch.no_grad():
        cache, other = Cache(), Cache()
        model((4, 6), torch.cat([texts[0][:4], texts[1][:6]]), cache=cache)
        model((3,), texts[2][:3], cache=other)
        cache.append(other)
        cache.select([2, 0, 0])
        states = model((1, 1, 1), torch.stack([texts[2][3], texts[0][4], texts[0][4]]), cache=cache)
        again = model((1, 1, 1), torch.stack([texts[2][4], texts[0][5], texts[0][5]]), cache=cache)
        expected = [_alone(model, text) for text in (texts[2], texts[0], texts[0])]
    assert cache.lengths == [5, 6, 6]
    first = torch.stack([expected[0][3], expected[1][4], expected[2][4]])
    second = torch.stack([expected[0][4], expected[1][5], expected[2][5]])
    torch.testing.assert_close(states, first, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(again, second, atol=1e-6, rtol=1e-5)


def test_run_resumes_bit_for_bit_and_learns(run: Path) -> None:
    last = _tiny.pretrain_with_stops(run / "tiny.yaml", run / "broken", [3, 7])
    assert _tiny.metrics(run / "broken") == _tiny.metrics(run / "whole")
    ours, whole = (
        load_file(p / "model.safetensors") for p in (last, run / "whole/checkpoints/latest")
    )
    assert ours.keys() == whole.keys()
    assert all(torch.equal(ours[name], whole[name]) for name in whole)
    held_out = [r["held_out"]["loss"] for r in _tiny.metrics(run / "whole") if "held_out" in r]
    assert held_out[-1] < held_out[0]


def test_run_generates_the_same_as_torch_without_a_cache(run: Path) -> None:
    opened = open_checkpoint(run / "whole", device="cpu")
    model, tokenizer = opened.model, opened.tokenizer
    greedy = Settings(max_new_tokens=6, min_new_tokens=6)
    texts = ["天", "地人山", "水"]
    written = list(Writer(model, tokenizer, opened.objective, greedy).write(texts, batch=2))
    for text, each in zip(texts, written, strict=True):
        ids, given = tokenizer.encode(text), len(tokenizer.encode(text))
        with torch.no_grad():
            for _ in range(6):
                logits = _alone(model, torch.tensor(ids))[-1] @ model.token_embedding.T
                for banned in (*opened.objective.suppress_tokens, *opened.objective.eos_token_ids):
                    logits[banned] = -torch.inf
                ids.append(int(logits.argmax()))
        assert each.outputs[0].text == tokenizer.decode(ids[given:])


def test_beams_have_the_log_probabilities_of_their_tokens(run: Path) -> None:
    opened = open_checkpoint(run / "whole", device="cpu")
    model, objective = opened.model, opened.objective
    texts = [opened.tokenizer.encode(text) for text in ("天地", "山")]
    prompts = [objective.continue_text(ids, 5) for ids in texts]
    settings = Settings(max_new_tokens=5, min_new_tokens=5, beam=3, nbest=3, length_penalty=0.0)
    rules = Rules(tuple(objective.eos_token_ids), tuple(objective.suppress_tokens), None)
    for given, answers in zip(texts, generate(model, prompts, settings, rules), strict=True):
        assert len({answer.ids for answer in answers}) == 3
        for answer in answers:
            ids = torch.tensor([*given, *answer.ids])
            with torch.no_grad():
                logits = _alone(model, ids) @ model.token_embedding.T
            each = logits.log_softmax(-1)[len(given) - 1 : -1].gather(1, ids[len(given) :, None])
            assert answer.score == pytest.approx(float(each.sum()), abs=1e-4)


def test_eval_and_plan_of_a_family_without_attention(run: Path, tmp_path: Path) -> None:
    done = _tiny.command("eval", run / "whole", "--json")
    assert done.returncode == 0, done.stderr
    held_out = [r["held_out"] for r in _tiny.metrics(run / "whole") if "held_out" in r]
    best = min(figures["loss"] for figures in held_out)
    assert json.loads(done.stdout)["loss"] == pytest.approx(best, abs=1e-5)
    plan = make(recipe.load(str(run / "tiny.yaml")), tmp_path / "run", "cpu", Log(QUIET))
    assert describe(plan)["model"]["family"] == "tests.parts.recurrent"
    with pytest.raises(UsageError, match=r"--mask: family .*recurrent has no attention"):
        draw_mask(plan, tmp_path / "mask.png")


@pytest.mark.slow
def test_selftest_of_a_family_that_transformers_has_not(run: Path) -> None:
    done = _tiny.command("selftest", run / "tiny.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "same bits" in done.stdout


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "\ntrain:",
            "\nattention: {kind: causal}\ntrain:",
            r"6:19: attention.kind: .*no attention",
        ),
        ("{name: clm, ", "{name: cpm_ant, ", r"5:19: objective\.name: cpm_ant needs "),
        ("dropout: 0.1", "dropot: 0.1", r"2:\d+: model\.dropot: unknown setting, did you mean"),
    ],
)
def test_recipe_that_does_not_fit_is_named_with_its_line(tmp_path, old, new, said) -> None:
    with pytest.raises(RecipeError, match=said):
        recipe.load(str(_tiny.write(tmp_path, text=RECIPE.replace(old, new, 1))))


def test_family_says_truthfully_what_it_sees() -> None:
    config = Config()
    assert [config.can(word) for word in ("causal", "prefix", "bidirectional")] == [
        True,
        False,
        False,
    ]
    assert config.kinds == ()
