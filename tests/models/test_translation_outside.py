"""An encoder-decoder and translation of a user's own: trained, resumed, judged, generated from.

Oracle: torch's scaled dot product over each pair alone, with the same weights.
"""

import json
import random
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from nlpkit import recipe
from nlpkit.attention.cache import Cache
from nlpkit.errors import RecipeError
from nlpkit.generate.engine import generate
from nlpkit.generate.rows import Rules
from nlpkit.generate.settings import Settings
from nlpkit.generate.texts import Writer
from nlpkit.plan import describe, format_batch, make
from nlpkit.runs.convert import convert
from nlpkit.runs.open_checkpoint import open_checkpoint
from nlpkit.train.log import QUIET, Log
from tests import _tiny
from tests.parts.encoder_decoder import Config
from tests.parts.encoder_decoder.model import Model

RECIPE = """\
name: tiny
model: {family: tests.parts.encoder_decoder, hidden_size: 32, num_heads: 2, max_positions: 64,
  dropout: 0.1}
tokenizer: {kind: bpe, vocab_size: 258}
data: {train: {files: [FOLDER/a.en, FOLDER/a.up]}, valid: {files: [FOLDER/b.en, FOLDER/b.up]},
  format: parallel}
objective: {name: seq2seq, max_length: 32}
train: {steps: 12, tokens_per_step: 256, tokens_per_batch: 128, lr: 1.0e-2, warmup_steps: 2,
  eval_every: 6, save_every: 6, precision: fp32}
eval: {metrics: [bleu]}
"""
SIZES = {"hidden_size": 16, "num_heads": 2, "intermediate_size": 24, "max_positions": 32}
SOURCES, TARGETS = (5, 1, 9), (4, 7, 2)


def _write(folder: Path) -> Path:
    """Write pairs of a word sequence and the same in capital letters."""
    draw = random.Random(0)
    for name, count in (("a", 80), ("b", 12)):
        lines = [
            " ".join(draw.choices(["a", "be", "cat"], k=draw.randint(1, 5))) for _ in range(count)
        ]
        (folder / f"{name}.en").write_text("\n".join(lines) + "\n")
        (folder / f"{name}.up").write_text("\n".join(lines).upper() + "\n")
    path = folder / "tiny.yaml"
    path.write_text(RECIPE.replace("FOLDER", str(folder)))
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run of the recipe, whole."""
    folder = tmp_path_factory.mktemp("translation")
    _tiny.pretrain(_write(folder), folder / "whole")
    return folder


def _model() -> Model:
    torch.manual_seed(0)
    return Model(Config(**SIZES, dropout=0, init_std=0.3), 40).eval()


def _drawn() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    draw = torch.Generator().manual_seed(1)
    return tuple(
        [torch.randint(40, (n,), generator=draw) for n in each] for each in (SOURCES, TARGETS)
    )


def _dense(model: Model, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the states (T, C) of one pair by torch's own functions and dense masks."""

    def attended(part, x, memory, is_causal=False):
        q, k, v = (
            layer(each).unflatten(1, (model.config.num_heads, -1)).transpose(0, 1)
            for layer, each in ((part.query, x), (part.key, memory), (part.value, memory))
        )
        out = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        return part.output(out.transpose(0, 1).flatten(1))

    def fed(block, x):
        return x + block.down(F.relu(block.up(block.feed_norm(x))))

    def embedded(ids):
        return model.token_embedding[ids] + model.position_embedding[: len(ids)]

    memory = embedded(source)
    for block in model.encoder:
        inner = block.norm(memory)
        memory = fed(block, memory + attended(block.attention, inner, inner))
    memory = model.encoder_norm(memory)
    x = embedded(target)
    for block in model.decoder:
        inner = block.norm(x)
        x = x + attended(block.attention, inner, inner, is_causal=True)
        x = fed(block, x + attended(block.cross, block.cross_norm(x), memory))
    return model.decoder_norm(x)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_pack_is_each_pair_alone_by_the_dense_formula(mode: str) -> None:
    model = _model().train(mode == "train")  # no dropout: only the backends differ
    sources, targets = _drawn()
    packed = model(TARGETS, torch.cat(targets), torch.cat(sources), SOURCES)
    pairs = list(zip(sources, targets, strict=True))
    dense = torch.cat([_dense(model, *pair) for pair in pairs])
    torch.testing.assert_close(packed, dense, atol=2e-6, rtol=1e-5)
    alone = [model((len(t),), t, s, (len(s),)) for s, t in pairs]
    torch.testing.assert_close(packed, torch.cat(alone), atol=2e-6, rtol=1e-5)
    wanted = torch.randn(packed.shape)
    parameters = [p for p in model.parameters() if p.requires_grad]
    ours = torch.autograd.grad((packed * wanted).sum(), parameters)
    right = torch.autograd.grad((dense * wanted).sum(), parameters)
    for mine, theirs in zip(ours, right, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


def test_cache_keeps_the_source_through_selection_and_appending() -> None:
    model = _model()
    sources, targets = _drawn()
    draw = torch.Generator().manual_seed(2)
    more = [torch.cat([t, torch.randint(40, (3,), generator=draw)]) for t in targets]
    with torch.no_grad():
        cache, other = Cache(), Cache()
        model(TARGETS[:2], torch.cat(targets[:2]), torch.cat(sources[:2]), SOURCES[:2], cache)
        model(TARGETS[2:], targets[2], sources[2], SOURCES[2:], other)
        cache.append(other)
        cache.select([2, 0, 0, 1])
        order = (2, 0, 0, 1)
        for step in range(3):
            new = torch.stack([more[i][TARGETS[i] + step] for i in order])
            states = model((1,) * 4, new, cache=cache)
            right = [_dense(model, sources[i], more[i])[TARGETS[i] + step] for i in order]
            torch.testing.assert_close(states, torch.stack(right), atol=2e-6, rtol=1e-5)


@pytest.mark.slow
def test_run_resumes_bit_for_bit_and_learns(run: Path) -> None:
    last = _tiny.pretrain_with_stops(run / "tiny.yaml", run / "broken", [7, 14])
    assert _tiny.metrics(run / "broken") == _tiny.metrics(run / "whole")
    ours, whole = (
        load_file(p / "model.safetensors") for p in (last, run / "whole/checkpoints/latest")
    )
    assert ours.keys() == whole.keys()
    assert all(torch.equal(ours[name], whole[name]) for name in whole)
    held_out = [r["held_out"]["loss"] for r in _tiny.metrics(run / "whole") if "held_out" in r]
    assert held_out[-1] < held_out[0]


def _greedy(opened, text: str, count: int) -> list[int]:
    """Return what the model writes, all of it computed anew at each step."""
    model, objective = opened.model, opened.objective
    source = torch.tensor([*opened.tokenizer.encode(text), objective.end])
    ids = [objective.begin]
    with torch.no_grad():
        while len(ids) <= count:
            logits = _dense(model, source, torch.tensor(ids))[-1] @ model.token_embedding.T
            logits[[*objective.suppress_tokens, *objective.eos_token_ids]] = -torch.inf
            ids.append(int(logits.argmax()))
    return ids[1:]


def test_generation_is_that_of_the_dense_formula_without_a_cache(run: Path) -> None:
    opened = open_checkpoint(run / "whole", device="cpu")
    settings = Settings(max_new_tokens=6, min_new_tokens=6)
    texts = ["cat", "a be a be cat", "be", "cat cat"]
    written = Writer(opened.model, opened.tokenizer, opened.objective, settings)
    found = [each.outputs[0].text for each in written.write(texts, batch=2)]
    assert found == [opened.tokenizer.decode(_greedy(opened, text, 6)) for text in texts]
    assert written.objective.max_length == 32
    (empty,) = written.write([""])
    assert empty.problem == "the source is empty"


def test_beams_have_the_log_probabilities_of_their_tokens(run: Path) -> None:
    opened = open_checkpoint(run / "whole", device="cpu")
    model, objective = opened.model, opened.objective
    texts = ["a be", "cat be cat be"]
    prompts = [objective.continue_text(opened.tokenizer.encode(text), 5) for text in texts]
    settings = Settings(max_new_tokens=5, min_new_tokens=5, beam=3, nbest=3, length_penalty=0.0)
    rules = Rules(objective.eos_token_ids, objective.suppress_tokens)
    for prompt, answers in zip(prompts, generate(model, prompts, settings, rules), strict=True):
        assert len({answer.ids for answer in answers}) == 3
        for answer in answers:
            ids = torch.tensor([objective.begin, *answer.ids])
            source = torch.from_numpy(prompt.source["source_ids"])
            with torch.no_grad():
                logits = _dense(model, source, ids[:-1]) @ model.token_embedding.T
            told = logits.log_softmax(-1).gather(1, ids[1:, None]).sum()
            assert answer.score == pytest.approx(float(told), abs=1e-4)


def test_command_line_translates_lines_of_stdin(run: Path) -> None:
    options = ("--max-new-tokens", "6", "--min-new-tokens", "6")
    done = _tiny.command("generate", run / "whole", "-", *options, stdin="cat\na be\n")
    assert done.returncode == 0, done.stderr
    opened = open_checkpoint(run / "whole", device="cpu")
    right = [opened.tokenizer.decode(_greedy(opened, text, 6)) for text in ("cat", "a be")]
    escaped = [
        text.replace("\\", r"\\").replace("\n", r"\n").replace("\t", r"\t") for text in right
    ]
    assert done.stdout.splitlines() == escaped


@pytest.mark.slow
def test_eval_scores_translations_of_the_run_and_of_two_files(run: Path) -> None:
    answers = run / "answers.jsonl"
    options = ("--json", "--max-new-tokens", "12")
    done = _tiny.command("eval", run / "whole", *options, "--predictions", answers)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    rows = [json.loads(line) for line in answers.read_text().splitlines()]
    assert [row["target"] for row in rows] == (run / "b.up").read_text().splitlines()
    assert figures["metrics"].keys() == {"bleu"}
    held_out = [r["held_out"]["loss"] for r in _tiny.metrics(run / "whole") if "held_out" in r]
    assert figures["loss"] == pytest.approx(min(held_out), abs=1e-5)
    both = [f"--data={run}/{name}" for name in ("b.en", "b.up")]
    again = _tiny.command("eval", run / "whole", *options, *both)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout) == figures
    four = [*both, *(f"--data={run}/{name}" for name in ("a.en", "a.up"))]
    more = _tiny.command("eval", run / "whole", *options, *four)
    assert json.loads(more.stdout)["rows"] == 92
    alone = _tiny.command("eval", run / "whole", *options, both[0])
    assert alone.returncode == 2
    assert "format parallel takes 2 files, source and target" in alone.stderr
    pairs = zip(*((run / name).read_text().splitlines() for name in ("b.en", "b.up")), strict=True)
    lines = [json.dumps({"source": source, "target": target}) for source, target in pairs]
    (run / "b.jsonl").write_text("".join(line + "\n" for line in lines))
    same = _tiny.command("eval", run / "whole", *options, f"--data={run}/b.jsonl")
    assert same.returncode == 0, same.stderr
    assert json.loads(same.stdout) == figures


def test_plan_and_conversion_of_a_family_with_sources(run: Path, tmp_path: Path) -> None:
    plan = make(recipe.load(str(run / "tiny.yaml")), tmp_path / "run", "cpu", Log(QUIET))
    assert describe(plan)["model"]["family"] == "tests.parts.encoder_decoder"
    head, *rows = format_batch(plan)
    named = ["sequence", "token", "input_ids", "labels", "source_ids", "target"]
    assert head.split("\t") == named
    first = [row.split("\t") for row in rows[: rows.index("")]]
    source = [row[1] for row in first if row[4]]
    assert source[-1] == "</s>"
    assert first[len(source)][1] == "<pad>"
    # The target is the source in capital letters (a byte a token).
    assert [row[5] for row in first[len(source) :]] == [*map(str.upper, source[:-1]), "</s>"]
    convert(run / "whole", tmp_path / "out")
    ours, again = (open_checkpoint(p, device="cpu") for p in (run / "whole", tmp_path / "out"))
    state = again.model.state_dict()
    assert all(torch.equal(each, state[name]) for name, each in ours.model.state_dict().items())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "{name: seq2seq, ",
            "{name: clm, ",
            r"7:19: objective\.name: clm does not give source_ids, source_lengths, and family",
        ),
        (
            "family: tests.parts.encoder_decoder, ",
            "family: gpt, residual_",
            r"7:19: objective\.name: seq2seq needs encodes_source \(the model reads a source",
        ),
        (
            "eval:",
            "attention: {kind: full}\neval:",
            r"10:19: attention\.kind: full does not fit the model: the decoder needs a kind",
        ),
    ],
)
def test_recipe_that_does_not_fit_is_named_with_its_line(tmp_path, old, new, said) -> None:
    path = _write(tmp_path)
    text = path.read_text().replace(old, new, 1)
    path.write_text(text.replace("residual_hidden_size: 32, num", "hidden_size: 32, num"))
    if "gpt" in new:
        path.write_text(path.read_text().replace("  dropout: 0.1", "  residual_dropout: 0.1"))
    with pytest.raises(RecipeError, match=said):
        recipe.load(str(path))


def test_decoder_with_another_kind_of_attention(run: Path, tmp_path: Path) -> None:
    kind = "attention={kind: tests.parts.local_window, window: 3}"
    place = _tiny.pretrain(run / "tiny.yaml", tmp_path / "run", kind, "train.steps=2")
    opened = open_checkpoint(place, device="cpu")
    writer = Writer(opened.model, opened.tokenizer, opened.objective, Settings(max_new_tokens=8))
    assert [len(each.outputs) for each in writer.write(["cat", "a be"])] == [1, 1]
    ids = torch.randint(258, (8,))
    source = torch.tensor([5, 6])
    with torch.no_grad():
        cache = Cache()
        states = [opened.model((1,), ids[:1], source, (2,), cache)]
        states += [opened.model((1,), ids[i : i + 1], cache=cache) for i in range(1, 8)]
        whole = opened.model((8,), ids, source, (2,))
    torch.testing.assert_close(torch.cat(states), whole, atol=2e-6, rtol=1e-5)
