"""`nlpkit reproduce`: runs trained again from their directories, and what makes them part."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from nlpkit import cli
from nlpkit.disk import file_sha256
from nlpkit.report import same_run

SMALL = [
    *(
        "model.hidden_size=16",
        "model.num_layers=1",
        "model.num_heads=2",
        "tokenizer.vocab_size=300",
    ),
    *("objective.max_length=16", "train.tokens_per_step=64", "train.steps=4", "train.save_every=2"),
    *("train.eval_every=2", "train.precision=fp32", "data.train=[t.txt]", "data.valid=[v.txt]"),
]


def pretrain(*settings: str) -> None:
    sets = [part for setting in [*SMALL, *settings] for part in ("--set", setting)]
    assert cli.run(["pretrain", "gpt2", "-q", "--out", "run", *sets]) == 0


def reproduce(*arguments: str, run: str = "run") -> int:
    return cli.run(["reproduce", run, "-q", *arguments])


def write_texts(folder: Path) -> None:
    lines = [f"the {n} ships of {n * 7 % 13} came back to {n * 5 % 11}" for n in range(80)]
    (folder / "t.txt").write_text("\n".join(lines[:60]) + "\n")
    (folder / "v.txt").write_text("\n".join(lines[60:]) + "\n")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    write_texts(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        pretrain()
        assert reproduce() == 0
    return folder


@pytest.fixture
def runs(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a run and of the run that reproduced it; the texts are still those of the run."""
    for name in ("run", "run-reproduced"):
        shutil.copytree(trained / name, tmp_path / name, symlinks=True)
    monkeypatch.chdir(tmp_path)
    write_texts(trained)
    return tmp_path


def change_status(run: str, **values: object) -> None:
    path = Path(run) / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_run_is_equal_and_the_directory_is_kept(runs, capsys):
    assert reproduce() == 0  # the second run is finished: it is only compared
    out, err = capsys.readouterr()
    assert err == ""
    assert out == (
        "equal to the bit: run: 4 records of steps up to 4, 2 evaluations, checkpoints (step "
        "2, 4), tokenizer, tokenised text\n"
    )


@pytest.mark.parametrize(("folder", "name"), [("run", "."), ("run/checkpoints", "..")])
def test_run_by_its_place_is_reproduced_beside_it(runs, monkeypatch, capsys, folder, name):
    monkeypatch.chdir(folder)
    assert reproduce("--json", run=name) == 0
    assert json.loads(capsys.readouterr().out)["reproduced"] == str(runs / "run-reproduced")
    assert not list((runs / "run").glob("*-reproduced"))


@pytest.mark.parametrize("lost", [False, True])
def test_the_directory_of_another_run_is_refused_without_advice_of_pretrain(runs, capsys, lost):
    recipe = Path("run-reproduced/recipe.yaml")
    recipe.write_text(recipe.read_text().replace("steps: 4", "steps: 5"))
    if lost:
        recipe.unlink()
    assert reproduce() == (4 if lost else 2)
    err = capsys.readouterr().err
    assert err.endswith("give --out another directory\n")
    assert "allow-change" not in err


def test_json_has_verdict_and_facts(runs, capsys):
    change_status("run", torch="1.0", machine="another")
    assert reproduce("--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["equal"] is True
    assert found["checkpoints"] == [2, 4]
    assert found["facts"].keys() == {"torch", "machine"}
    assert found["differences"] == []


def test_another_loss_stops_the_run_and_is_named(runs, capsys):
    shutil.rmtree("run-reproduced")
    path = Path("run/metrics.jsonl")
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [record["step"] for record in records] == [1, 2, 2, 3, 4, 4]
    records[3]["loss"] += 1e-6
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    change_status("run", torch="1.0")
    assert reproduce() == 6
    out, err = capsys.readouterr()
    verdict, difference, fact = out.splitlines()
    assert verdict.startswith("different from step 3 on: run: compared 3 records")
    assert difference.startswith(f"step 3: metrics.jsonl: loss {records[3]['loss']} there, ")
    assert fact.startswith("torch: 1.0 there, ")
    assert err == "nlpkit: run is not reproduced: the runs part at step 3\n"
    assert len(Path("run-reproduced/metrics.jsonl").read_text().splitlines()) == 4


def test_figure_of_an_evaluation_is_named(runs, capsys):
    path = Path("run/metrics.jsonl")
    records = [json.loads(line) for line in path.read_text().splitlines()]
    records[2]["held_out"]["perplexity"] = 1.0
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert reproduce() == 6
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("step 2: metrics.jsonl: held_out.perplexity 1.0 there, ")
    assert lines[2] == "machine, versions and data are the same"


def test_file_of_a_checkpoint_is_named(runs, capsys):
    checkpoint = Path("run/checkpoints/step-00000002")
    path = checkpoint / "optimizer.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["files"][path.name]["sha256"] = file_sha256(path)
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    assert reproduce("--json") == 6
    (found,) = json.loads(capsys.readouterr().out)["differences"]
    assert (found["step"], found["file"]) == (2, "step-00000002/optimizer.safetensors")
    assert (found["figure"], found["there"]) == ("SHA-256", file_sha256(path))


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
def test_file_that_is_not_the_one_that_was_saved_is_named_before_training(runs, capsys, name):
    shutil.rmtree("run-reproduced")
    path = Path("run/checkpoints/step-00000002") / name
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert reproduce() == 4
    assert f"step-00000002: {name} has changed since it was" in capsys.readouterr().err
    assert not Path("run-reproduced").exists()


def test_state_of_a_checkpoint_may_be_deleted(runs, capsys):
    checkpoint = Path("run/checkpoints/step-00000002")
    for name in ("training.json", "optimizer.safetensors"):
        (checkpoint / name).unlink()
    assert reproduce() == 0


def test_other_tokenizer_and_text_part_before_the_first_step(runs, capsys):
    Path("run/tokenizer/tokenizer_config.json").write_text("{}")
    change_status("run", data="0" * 64)
    assert reproduce() == 6
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("different from step 0 on")
    assert lines[1].startswith("step 0: tokenizer/tokenizer_config.json: SHA-256 ")
    assert lines[2].startswith("step 0: run.json: tokenised text: SHA-256 000000000000 there")


def test_steps_compare_the_beginning_and_the_rest_goes_on(runs, capsys):
    shutil.rmtree("run-reproduced")
    assert reproduce("--steps", "2", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["steps"], found["evaluations"], found["checkpoints"]) == (2, 1, [2])
    assert reproduce("--steps", "2") == 0
    assert reproduce("--json") == 0  # the same directory goes on
    capsys.readouterr()
    assert reproduce("--steps", "5") == 2
    assert capsys.readouterr().err == "nlpkit: --steps 5: run has 4 steps\n"


def test_unfinished_run_is_compared_up_to_a_step_alone(runs, capsys):
    change_status("run", finished=False)
    assert reproduce() == 2
    assert "run is not finished" in capsys.readouterr().err
    change_status("run", diverged=True)
    assert reproduce() == 2
    assert "run has diverged; compare its first --steps N" in capsys.readouterr().err
    assert reproduce("--steps", "3") == 0


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"processes": 2}, "was trained by 2 processes"),
        ({"resumed_from": "other/step-00000002"}, "was begun from other/step-00000002"),
        ({"changed_settings": ["train.lr"]}, "--allow-change: train.lr"),
    ],
)
def test_runs_that_cannot_be_repeated_are_refused(runs, capsys, facts, said):
    change_status("run", **facts)
    assert reproduce() == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert said in err


def test_data_are_checked_before_anything_is_trained(runs, trained, capsys):
    shutil.rmtree("run-reproduced")
    (trained / "t.txt").write_text("something else\n")
    assert reproduce() == 3
    assert "t.txt: not the text that run has read" in capsys.readouterr().err
    (trained / "t.txt").unlink()
    assert reproduce() == 4
    assert "t.txt: no such file, and run has read it" in capsys.readouterr().err
    assert not Path("run-reproduced").exists()


def test_wrong_directories_give_one_line(runs, capsys):
    Path("empty").mkdir()
    for name, said in (
        ("none", "none: no such run directory"),
        ("empty", "empty: not a run directory: it has no recipe.yaml"),
        ("run/recipe.yaml", "run/recipe.yaml: is a file, not a run directory"),
    ):
        assert reproduce(run=name) == 4
        err = capsys.readouterr().err
        assert said in err
        assert len(err.splitlines()) == 1
    assert reproduce("--out", "run") == 2
    assert "is RUN itself" in capsys.readouterr().err


def test_record_that_one_run_lacks_is_a_difference(runs):
    path = Path("run-reproduced/metrics.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2] + lines[4:]))  # without an evaluation and a step
    found = same_run.compare(Path("run"), Path("run-reproduced"))
    missing = {each.figure: each.here for each in found.differences}
    assert {"loss", "tokens", "held_out.loss"} <= missing.keys()
    assert {*missing.values()} == {None}


def test_allowed_change_is_recorded(runs, trained):
    sets = [part for setting in [*SMALL, "train.steps=6"] for part in ("--set", setting)]
    sets += ["--set", f"data.train=[{trained}/t.txt]", "--set", f"data.valid=[{trained}/v.txt]"]
    arguments = ["pretrain", "gpt2", "-q", "--out", "run", *sets, "--allow-change"]
    assert cli.run(arguments) == 0
    status = json.loads(Path("run/run.json").read_text())
    assert "train.steps" in status["changed_settings"]
    assert reproduce() == 2


@pytest.mark.slow
def test_run_with_a_budget_takes_the_progress_that_was_measured(tmp_path, monkeypatch, capsys):
    write_texts(tmp_path)
    monkeypatch.chdir(tmp_path)
    pretrain("train.steps=null", "train.budget=1s")
    assert reproduce() == 0
    records = [Path(name, "metrics.jsonl").read_text() for name in ("run", "run-reproduced")]
    lines = [[json.loads(line) for line in text.splitlines()] for text in records]
    assert len(lines[0]) == len(lines[1]) > 2
    assert lines[0][-1]["held_out"] == lines[1][-1]["held_out"]
    path = Path("run/metrics.jsonl")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    assert reproduce("--out", "again") == 4
    assert "lacks the progress of steps" in capsys.readouterr().err


def test_pairs_are_those_of_the_run(tmp_path, monkeypatch, capsys):
    write_texts(tmp_path)
    monkeypatch.chdir(tmp_path)
    pair = {"sentence_good": "the 1 ships of 7", "sentence_bad": "the 1 of ships 7"}
    Path("pairs.jsonl").write_text(json.dumps(pair) + "\n")
    pretrain("eval.pairs=[pairs.jsonl]", "train.steps=2")
    assert reproduce() == 0
    capsys.readouterr()
    change_status(
        "run", pairs=json.loads(Path("run/run.json").read_text())["pairs"] | {"judged": 2}
    )
    assert reproduce() == 6
    assert capsys.readouterr().out.splitlines()[1] == (
        "step 0: run.json: pairs: judged 2 there, 1 here"
    )
    Path("pairs.jsonl").write_text(json.dumps(pair | {"sentence_good": "another"}) + "\n")
    assert reproduce("--out", "again") == 3
    assert "pairs.jsonl: not the text that run has read" in capsys.readouterr().err


def test_tuned_run_starts_on_the_same_weights(runs, trained, capsys):
    sets = [f"data.train=[{trained}/t.txt]", f"data.valid=[{trained}/v.txt]", "train.steps=2"]
    sets += ["train.tokens_per_step=64", "objective.max_length=16", "init_from=run"]
    given = [part for setting in sets for part in ("--set", setting)]
    Path("r.yaml").write_text(
        "name: tuned\ninit_from: run\nobjective: {name: clm}\n"
        "data: {train: [t.txt]}\ntrain: {steps: 2, lr: 1e-3, schedule: constant}\n"
    )
    assert cli.run(["pretrain", "r.yaml", "-q", "--out", "tuned", *given]) == 0
    assert reproduce(run="tuned") == 0
    capsys.readouterr()
    model = Path("run/checkpoints/best/model.safetensors").resolve()
    tensors = load_file(model)
    next(iter(tensors.values())).flat[0] += 1
    save_file(tensors, model)
    assert reproduce("--out", "third", run="tuned") == 4
    assert "missing, or not the weights on which tuned starts" in capsys.readouterr().err


def test_parts_that_the_folder_of_the_recipe_has_are_those_of_the_run(runs, trained, capsys):
    shutil.copytree("run", "there/old", symlinks=True)
    Path("there/r.yaml").write_text(
        "name: small\nmodel: {family: gpt2, hidden_size: 16, num_layers: 1, num_heads: 2}\n"
        "tokenizer: {path: old/tokenizer}\n"
        f"data: {{train: [{trained}/t.txt], valid: [{trained}/v.txt]}}\n"
        "objective: [{name: clm, max_length: 16}, {name: distillation, teacher: old}]\n"
        "train: {steps: 2, lr: 1e-3, schedule: constant, tokens_per_step: 64, precision: fp32}\n"
    )
    assert cli.run(["pretrain", "there/r.yaml", "-q", "--out", "small"]) == 0
    assert reproduce(run="small") == 0, capsys.readouterr().err


@pytest.mark.slow
def test_share_held_out_and_batch_that_fits_are_those_of_the_run(runs, tmp_path, capsys):
    Path("texts").mkdir()
    write_texts(Path("texts"))
    recipe = [part for setting in SMALL[:-2] for part in ("--set", setting)]
    recipe += ["--set", "data={train: [texts/], valid_fraction: 0.2}"]
    recipe += ["--set", "train.memory=12GB"]  # of a process that has run other tests
    assert cli.run(["pretrain", "gpt2", "-q", "--out", "parted", *recipe]) == 0
    assert reproduce(run="parted") == 0


def test_settings_of_adapters_are_the_same_in_another_order(tmp_path):
    found = []
    for name, text in (("one", '{"r": 1, "bias": "none"}'), ("other", '{"bias": "none", "r": 1}')):
        place = tmp_path / name / "step-00000001"
        place.mkdir(parents=True)
        (place / "adapter_config.json").write_text(text)
        manifest = {"files": {"adapter_config.json": {"sha256": name}}}
        (place / "manifest.json").write_text(json.dumps(manifest))
        found.append(same_run._list_saved({1: place}, [1]))
    assert found[0] == found[1]
