"""A mixture of objectives: each example is made by one member, drawn by weight.

Oracles: each member alone, hand arithmetic, a run without a stop, a run of one process. The parts
are `tests/parts/unilm*` and `proofs_*`, and the shipped `cpm_ant`.
"""

import inspect
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from nlpkit import cli, recipe
from nlpkit.checkpoints.changes import set_earlier
from nlpkit.contracts import abilities
from nlpkit.contracts.abilities import Filling
from nlpkit.data.loader import Examples
from nlpkit.data.pack import collate
from nlpkit.errors import FileError, RecipeError
from nlpkit.evaluate import source
from nlpkit.objectives import mixture
from nlpkit.objectives.examples.text import forward
from nlpkit.objectives.several.combined import Combined
from nlpkit.runs.open_checkpoint import Opened, open_checkpoint
from nlpkit.train.machine import to_device
from tests import _processes, _tiny
from tests._schema import validator

UNILM = "tests.parts.unilm_mlm"
SHARES = {"both": 1 / 3, "left": 1 / 6, "right": 1 / 6, "source": 1 / 3}
MEMBERS = ", ".join(
    f"{{name: {UNILM}, sees: {sees}, alias: {sees}, weight: {6 * share:g}, max_length: 48}}"
    for sees, share in SHARES.items()
)
OBJECTIVE = f"objective: {{name: mixture, of: [{MEMBERS}]}}\n"
HEAD = """\
name: tiny
model: {family: FAMILY, hidden_size: 32, num_layers: 1, num_heads: 4, max_positions: 64}
tokenizer: {kind: bpe, vocab_size: 300}
data: {train: [TRAIN], valid: [VALID]}
"""
TRAIN = """\
train: {steps: 6, tokens_per_step: 512, tokens_per_batch: 256, lr: 1.0e-2, warmup_steps: 2,
  precision: fp32, eval_every: 3, save_every: 3}
"""
RECIPE = HEAD.replace("FAMILY", "tests.parts.unilm") + OBJECTIVE + TRAIN
# Members with heads and terms of their own: one predicts words, one whether each was replaced.
TWO_HEADS = (
    HEAD.replace("FAMILY", "tests.parts.proofs_encoder")
    + "objective: {name: mixture, of: [{name: tests.parts.proofs_mlm, weight: 3},"
    " {name: tests.parts.proofs_rtd}]}\n" + TRAIN
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of UniLM's mixture, whole."""
    folder = tmp_path_factory.mktemp("mixture")
    _tiny.pretrain(_tiny.write(folder, text=RECIPE), folder / "whole")
    return folder


@pytest.fixture(scope="module")
def opened(run: Path) -> Opened:
    return open_checkpoint(run / "whole", device="cpu")


@pytest.fixture(scope="module")
def two_heads(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    """A checkpoint of two members with terms of their own."""
    folder = tmp_path_factory.mktemp("heads")
    _tiny.pretrain(_tiny.write(folder, text=TWO_HEADS), folder / "run", "train.steps=2")
    return open_checkpoint(folder / "run", device="cpu")


def _made(opened: Opened, count: int, size: int = 20) -> list[dict[str, np.ndarray]]:
    """Return examples of random words."""
    rng = np.random.default_rng(0)
    words = np.flatnonzero(opened.tokenizer.token_characters() > 0)
    return [opened.objective.example(rng.choice(words, size), rng) for _ in range(count)]


@pytest.mark.slow
def test_members_are_drawn_by_weight(opened: Opened) -> None:
    drawn = [int(example["member"][0]) for example in _made(opened, 3000)]
    found = np.bincount(drawn, minlength=4) / 3000
    shares = np.array([*SHARES.values()])
    assert opened.objective.shares.tolist() == pytest.approx(shares.tolist())
    # Four standard errors of a share of 3,000 draws.
    assert (abs(found - shares) < 4 * np.sqrt(shares * (1 - shares) / 3000)).all()


def test_example_is_what_its_member_makes_with_the_rest_of_the_generator(opened: Opened) -> None:
    objective = opened.objective
    for seed in range(30):
        piece = np.arange(20, 40)
        made = objective.example(piece, np.random.default_rng(seed))
        rng = np.random.default_rng(seed)
        rng.random()  # the draw of the member
        expected = objective.members[int(made["member"][0])].example(piece, rng)
        assert all(np.array_equal(made[name], expected[name]) for name in expected)


def test_example_depends_on_seed_epoch_and_piece_alone(run: Path, opened: Opened) -> None:
    class Corpus:
        """Twenty documents of thirty tokens."""

        lengths = np.full(20, 30)
        starts, weights = np.array([0]), np.array([1.0])

        def document(self, index: int) -> np.ndarray:
            return np.arange(20, 50)

    one, other = (Examples(Corpus(), opened.objective, 7) for _ in range(2))
    forwards = [one.make(item, 3) for item in range(20)]
    backwards = [other.make(item, 3) for item in reversed(range(20))][::-1]
    for ours, theirs in zip(forwards, backwards, strict=True):
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    members = [[int(one.make(i, epoch)["member"][0]) for i in range(20)] for epoch in range(3)]
    assert members[0] != members[1] != members[2]  # drawn again in each epoch


def _loss_by_hand(
    opened: Opened, made: list[dict[str, np.ndarray]]
) -> dict[str, tuple[float, int]]:
    """Return sum and number of targets of each member, each of its sequences alone."""
    found = dict.fromkeys(opened.objective.labels, (0.0, 0))
    for example in made:
        number = int(example["member"][0])
        member, label = opened.objective.members[number], opened.objective.labels[number]
        batch = to_device(collate([{n: example[n] for n in member.fields}], member.fields), "cpu")
        with torch.no_grad():
            hidden = forward(member, opened.model, batch)
            (term,) = member.loss(opened.model, hidden, batch).terms.values()
        total, count = found[label]
        found[label] = total + float(term.loss_sum), count + term.num_targets
    return found


@pytest.mark.parametrize("name", ["opened", "two_heads"])
def test_loss_of_a_pack_is_that_of_each_member_on_its_own_sequences(
    name: str, request: pytest.FixtureRequest
) -> None:
    opened = request.getfixturevalue(name)
    made = _made(opened, 40)
    batch = collate(made, opened.objective.fields)
    counted = opened.objective.num_targets(batch.fields)
    moved = to_device(batch, torch.device("cpu"))
    with torch.no_grad():
        hidden = forward(opened.objective, opened.model, moved)
        loss = opened.objective.loss(opened.model, hidden, moved)
    expected = _loss_by_hand(opened, made)
    assert {n: count for n, (_, count) in loss.parts.items()} == {
        n: count for n, (_, count) in expected.items()
    }
    for part, (total, _) in loss.parts.items():
        assert float(total) == pytest.approx(expected[part][0], rel=1e-5)
    assert loss.num_targets == counted
    if name == "opened":  # one term: the mean over all masked tokens, as the authors' code has it
        assert {n: term.weight for n, term in loss.terms.items()} == {"unilm": pytest.approx(1)}
        mean = sum(s for s, _ in expected.values()) / sum(n for _, n in expected.values())
    else:  # 3 : 1
        weights = {n: term.weight for n, term in loss.terms.items()}
        assert weights == {"mlm": 0.75, "rtd": 0.25}
        mlm, rtd = expected["proofs_mlm"], expected["proofs_rtd"]
        mean = 0.75 * mlm[0] / mlm[1] + 0.25 * rtd[0] / rtd[1]
    assert float(loss.mean(counted)) == pytest.approx(mean, rel=1e-5)


def test_batch_without_a_member_has_its_term_without_targets_and_gradients_of_its_head(
    two_heads: Opened,
) -> None:
    objective = two_heads.objective
    made = [example for example in _made(two_heads, 30) if example["member"][0] == 0]
    batch = collate(made, objective.fields)
    assert objective.num_targets(batch.fields)["rtd"] == 0
    model = two_heads.model.requires_grad_(True)
    moved = to_device(batch, torch.device("cpu"))
    loss = objective.loss(model, forward(objective, model, moved), moved)
    assert (loss.terms["rtd"].num_targets, float(loss.terms["rtd"].loss_sum.detach())) == (0, 0)
    assert loss.parts["proofs_rtd"][1] == 0
    # As in a step to which another process adds targets of that member.
    loss.mean({"mlm": 9, "rtd": 9}).backward()
    assert model.detect_head.weight.grad.abs().max() == 0
    model.requires_grad_(False)


@pytest.mark.slow
def test_run_resumes_bit_for_bit(run: Path) -> None:
    last = _tiny.pretrain_with_stops(run / "tiny.yaml", run / "broken", [3, 7])
    assert _tiny.metrics(run / "broken") == _tiny.metrics(run / "whole")
    ours, theirs = (
        load_file(path / "model.safetensors") for path in (last, run / "whole/checkpoints/latest")
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_held_out_loss_of_each_member_is_reported_and_evaluated_again(
    run: Path, opened: Opened, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [r for r in _tiny.metrics(run / "whole") if "held_out" in r]
    held_out = records[-1]["held_out"]
    assert {*held_out["losses"]} == {*SHARES}
    assert all({*r["losses"]} == {*SHARES} for r in _tiny.metrics(run / "whole") if "losses" in r)
    latest = str(run / "whole/checkpoints/latest")
    assert cli.run(["eval", latest, "--json", "-q", "--device", "cpu"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["losses"] == pytest.approx(held_out["losses"], rel=1e-5)


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one(tmp_path: Path) -> None:
    path = _tiny.write(tmp_path, text=TWO_HEADS)
    # One batch of a few sequences a process: some have no example of a member. Dropout depends on
    # the process.
    dropouts = ("embedding", "attention", "residual")
    sets = (
        *(f"model.{name}_dropout=0.0" for name in dropouts),
        "train.steps=4",
        "train.tokens_per_batch=64",
        "train.tokens_per_step=128",
    )
    _tiny.pretrain(path, tmp_path / "one", *sets)
    verb = ("pretrain", path, "--out", tmp_path / "two", *(f"--set={s}" for s in sets))
    done = _processes.launched(2, *verb, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    for ours, theirs in _tiny.figures_of_both(tmp_path / "one", tmp_path / "two"):
        assert theirs["losses"] == pytest.approx(ours["losses"], abs=1e-4)
        assert theirs["loss"] == pytest.approx(ours["loss"], abs=1e-4)


def test_plan_shows_the_member_of_each_sequence(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["plan", str(run / "tiny.yaml"), "--batch", "-q"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    column = head.split("\t").index("member")
    shown = [line.split("\t")[column] for line in lines if line]
    assert {*shown} - {""} <= {*SHARES}
    assert len({*shown}) > 2


def test_shipped_objective_in_two_forms_is_its_own_mixture(tmp_path: Path) -> None:
    """CPM-Ant's half and half, as two members that do one of the two each."""
    members = ", ".join(
        f"{{name: cpm_ant, alias: {alias}, infilling_rate: {rate}, max_length: 64, min_piece: 4}}"
        for alias, rate in (("fill", 1.0), ("write", 0.0))
    )
    text = _tiny.RECIPE.replace(
        "objective: {name: cpm_ant, max_length: 64, min_piece: 4}",
        f"objective: {{name: mixture, of: [{members}]}}",
    )
    last = _tiny.pretrain(_tiny.write(tmp_path, text=text), tmp_path / "run", "train.steps=4")
    losses = _tiny.metrics(tmp_path / "run")[0]["losses"]
    parts = {
        f"{alias}.{part}" for alias in ("fill", "write") for part in ("infilling", "generation")
    }
    assert {*losses} == parts
    assert losses["fill.generation"] is None
    assert losses["write.infilling"] is None
    # It generates as its first member does.
    opened = open_checkpoint(last, device="cpu")
    alone = opened.objective.members[0]
    ours, theirs = (o.continue_text([5, 6], 3) for o in (opened.objective, alone))
    assert all(np.array_equal(ours.given[name], theirs.given[name]) for name in theirs.given)
    assert isinstance(opened.objective, Filling)


def _load(folder: Path, members: str, family: str = "gpt") -> recipe.Resolved:
    text = (
        HEAD.replace("FAMILY", family) + f"objective: {{name: mixture, of: [{members}]}}\n" + TRAIN
    )
    return recipe.load(str(_tiny.write(folder, text=text)))


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ("{name: clm}", "must have at least 2 entries"),
        ("{name: clm}, {name: clm, max_length: 3}", "two members have the name clm; give one of"),
        ("{name: clm}, {name: clmm, alias: b}", r"5:\d+: objective\.of\.1\.name: no 'clmm', did"),
        ("{name: clm}, {name: clm, alias: b, max_len: 3}",
         r"5:\d+: objective\.of\.1\.max_len: unknown setting, did you mean max_length"),
        ("{name: clm}, {name: clm, alias: b, weight: 0}",
         r"objective\.of\.1\.weight: must be greater than 0"),
        ("{name: clm}, {name: cpm_ant}",
         r"5:\d+: objective\.of\.1\.name: cpm_ant needs model\.prompt_length"),
        ("{name: clm}, {name: classification}",
         r"objective\.of\.1\.name: classification does not learn from running text"),
        ("{name: clm}, {name: mixture, of: [{name: clm}, {name: clm, alias: b}]}",
         r"objective\.of\.1\.name: mixture is a mixture itself"),
        (f"{{name: clm}}, {{name: {UNILM}}}",
         r"objective\.of\.1\.name: clm and unilm_mlm give the model other inputs"),
    ],
)  # fmt: skip
def test_mixtures_that_do_not_fit_are_named_with_their_line(
    tmp_path: Path, members: str, said: str
) -> None:
    with pytest.raises(RecipeError, match=said):
        _load(tmp_path, members)


def test_recipe_of_a_mixture_is_written_out_fits_the_schema_and_knows_origins(
    tmp_path: Path,
) -> None:
    found = _load(tmp_path, "{name: clm, max_length: 32}, {name: clm, alias: b, weight: 2}")
    common = {"name": "clm", "contiguous": True, "learn_unknown": False}
    assert found.dump()["objective"]["of"] == [
        common | {"weight": 1.0, "max_length": 32},
        common | {"weight": 2.0, "alias": "b", "max_length": 512},
    ]
    validator().validate(found.dump())
    again = recipe.parse(found.to_yaml().encode(), "again", tmp_path)
    assert again.recipe == found.recipe
    assert found.origin["objective.of.0.max_length"].endswith("tiny.yaml:5")
    assert found.origin["objective.of.1.max_length"] == "default"


def test_members_that_cut_text_differently_are_refused_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    members = "{name: clm, max_length: 32}, {name: clm, alias: b, max_length: 16}"
    _load(tmp_path, members)
    assert cli.run(["pretrain", str(tmp_path / "tiny.yaml"), "--dry-run", "-q"]) == 2
    message = "clm and b cut documents differently, in pieces of up to 33 and 17 tokens"
    assert message in capsys.readouterr().err


def test_length_of_an_objective_behind_a_mixture_is_named_with_its_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mixed = "{name: mixture, of: [{name: nsp, max_length: 32}, {name: sop, max_length: 32}]}"
    text = HEAD.replace("FAMILY", "bert").replace("bpe", "wordpiece")
    path = _tiny.write(tmp_path, text=f"{text}objective: [{mixed}, {{name: wwm}}]\n{TRAIN}")
    assert cli.run(["pretrain", str(path), "--dry-run", "-q"]) == 2
    place, said = "tiny.yaml:5:94: ", "objective.1.max_length: 512 is more than model.max_positions"
    assert place + said in capsys.readouterr().err


def test_members_of_other_length_are_planned_as_the_longest() -> None:
    class Mixed(mixture.Objective):
        def __init__(self) -> None:
            self.labels = ("one", "other")
            self.members = tuple(_Cut(extra) for extra in (0, 1))

    mixed = Mixed()
    spans = mixed.spans(np.array([9, 4]))
    assert mixed.length(spans.stop - spans.start).tolist() == [5, 5, 2, 5]
    assert mixed.max_shrink == 1


class _Cut(mixture.TextObjective):
    """Cuts pieces of four tokens, whatever it adds to them."""

    def __init__(self, extra: int) -> None:
        self.config, self.extra = type("Settings", (), {"max_length": 4 + extra}), extra

    def num_targets(self, batch):
        raise AssertionError("never packed")

    def loss(self, model, hidden, batch):
        raise AssertionError("never packed")


def test_members_of_an_older_run_keep_its_behavior(tmp_path: Path) -> None:
    now = _load(tmp_path, "{name: clm, max_length: 32}, {name: clm, alias: b}")
    asked = _load(
        tmp_path, "{name: clm, max_length: 32, learn_unknown: false}, {name: clm, alias: b}"
    )

    def learned(resolved: recipe.Resolved) -> list[bool]:
        return [each.config.learn_unknown for each in resolved.recipe.objective[0].config.of]

    assert learned(now) == [False, False]
    assert learned(set_earlier(now, now)) == [True, True]  # the recorded recipe lacks the setting
    assert learned(set_earlier(now, asked)) == [False, True]
    assert learned(set_earlier(asked, now)) == [False, True]


def test_member_refuses_its_settings_by_its_number(tmp_path: Path) -> None:
    resolved = _load(tmp_path, "{name: clm, max_length: 64}, {name: clm, alias: b}")
    settings = resolved.recipe.objective[0].config
    tokenizer = type("Ids", (), {"bos_id": None, "eos_id": None, "unk_id": None})
    with pytest.raises(ValueError, match=r"objective\.of\.1: objective\.max_length: 512 is more"):
        mixture.Objective(settings, tokenizer, resolved.recipe.model.config)


def test_checkpoint_of_a_stranger_brings_no_code_as_a_member(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run / "whole/checkpoints/latest", copy, symlinks=False)
    (copy / "manifest.json").unlink()
    notes = json.loads((copy / "nlpkit.json").read_text())
    notes["objective"]["of"][1]["name"] = "evil.member"
    (copy / "nlpkit.json").write_text(json.dumps(notes))
    with pytest.raises(FileError, match=r"names 'evil\.member'"):
        open_checkpoint(copy, device="cpu")
    text = (run / "tiny.yaml").read_text("utf-8").replace(UNILM, "evil.member")
    (copy / "recipe.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(FileError, match=r"names 'evil\.member'"):
        source.load_run_recipe(copy / "recipe.yaml")


def test_mixture_reads_and_writes_as_its_generative_member(tmp_path: Path) -> None:
    text = (
        RECIPE[: RECIPE.index("model:")]
        + """\
model: {family: t5, hidden_size: 32, num_layers: 1, num_heads: 2, intermediate_size: 64}
tokenizer: {kind: bpe, vocab_size: 300, min_frequency: 1}
data: {train: [TRAIN], valid: [VALID]}
objective: {name: mixture, of: [{name: span_corruption, max_length: 32}, {name: prefix_lm,
  max_length: 34}]}
train: {steps: 1, tokens_per_step: 256, tokens_per_batch: 256, lr: 1.0e-2, schedule: constant}
"""
    )
    _tiny.pretrain(_tiny.write(tmp_path, text=text), tmp_path / "run")
    made = open_checkpoint(tmp_path / "run", device="cpu").objective
    member = made.members[0]
    blank = "a <extra_id_0> b"
    assert made.encode_input(blank) == member.encode_input(blank) != made.tokenizer.encode(blank)
    assert made.decode_output([1, 2]) == member.decode_output([1, 2])
    assert made.max_new_tokens == member.max_new_tokens
    listed = Combined([made], [1.0])
    for name in abilities.MEMBERS[:4]:
        # `isinstance` of a protocol does so from Python 3.12 on.
        assert inspect.getattr_static(listed, name) == getattr(made, name)
