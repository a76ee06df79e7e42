"""`nlpkit eval` in real processes: figures against the training log and `nlpkit score`."""

import gzip
import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from nlpkit import cli
from nlpkit.errors import UsageError
from nlpkit.evaluate import held_out
from nlpkit.score import named
from tests import _tiny, _tiny_tasks
from tests._faults import Ended, Server

_LONG = ("--set", "train.steps=60", "--set", "train.eval_every=60", "--set", "train.save_every=60")


@pytest.fixture(scope="module")
def folder(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with finished runs: running text, and three tasks."""
    place = tmp_path_factory.mktemp("tasks")
    ant, gpt = _tiny_tasks.start(place), _tiny_tasks.start(place, "gpt")
    for name, text, start in (
        ("nlg", _tiny_tasks.NLG, ant),
        ("nlu", _tiny_tasks.NLU, ant),
        ("classes", _tiny_tasks.CLASSES, gpt),
    ):
        path = _tiny_tasks.task(place, name, text, start)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("NLPKIT_CACHE", str(place / "cache"))
            ended = server.run("finetune", path, *(_LONG if name == "nlg" else ()))
        assert ended.code == 0, ended.stderr
    return place


def _figures(ended: Ended) -> dict:
    assert ended.code == 0, ended.stderr
    return json.loads(ended.stdout)


def _refused(ended: Ended, code: int, text: str) -> None:
    assert ended.code == code, ended.stderr
    assert "Traceback" not in ended.stderr
    assert text in ended.stderr.splitlines()[-1]


def _run(folder: Path, task: str) -> Path:
    return folder / ("cpm_ant-run" if task == "text" else f"runs/{task}")


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    "task", ["text", "nlg", pytest.param("nlu", marks=pytest.mark.slow), "classes"]
)
def test_eval_gives_the_figures_of_the_training_log_whatever_the_batch(
    server: Server, folder: Path, tmp_path: Path, task: str
) -> None:
    run = _run(folder, task)
    logged = next(r["held_out"] for r in reversed(_tiny.metrics(run)) if "held_out" in r)
    found = []
    for budget in ("60", "256", "4096"):
        written = tmp_path / f"p{budget}"
        options = () if task == "text" else ("--predictions", written)
        checkpoint = run / "checkpoints/latest"
        found.append(_figures(server.run("eval", checkpoint, "--json", "--device", "cpu",
                                         "--tokens-per-batch", budget, *options)))  # fmt: skip
        figures = found[-1]
        for name in ("loss", "perplexity", "bits_per_character"):
            expected = logged[name]
            assert figures.get(name) == (expected if expected is None else
                                         pytest.approx(expected, rel=1e-5))  # fmt: skip
        assert figures["targets"] == logged["targets"]
        for name, value in logged["losses"].items():
            if len(logged["losses"]) > 1:
                assert figures["losses"][name] == pytest.approx(value, rel=1e-5)
        for name, value in logged.get("metrics", {}).items():
            assert figures["metrics"][name] == value
        if task != "text":
            first = (tmp_path / "p60").read_bytes()
            assert written.read_bytes() == first
            assert len(first.splitlines()) == 13
    assert all(f.get("metrics") == found[0].get("metrics") for f in found)


@pytest.mark.parametrize("task", ["nlg", "nlu", "classes"])
def test_eval_predictions_are_in_row_order_and_score_gives_their_figures(
    server: Server, folder: Path, tmp_path: Path, task: str
) -> None:
    file = tmp_path / "p.jsonl"
    metrics = {
        "nlg": "rouge:tokenize=zh,variant=rouge1,exact_match,bleu:tokenize=zh",
        "nlu": "f1:average=micro,accuracy,mcc",
        "classes": "f1,accuracy",
    }[task]
    found = _figures(server.run("eval", _run(folder, task), "--json", "--metrics", metrics,
                                "--predictions", file))  # fmt: skip
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    data = (folder / f"{task}.valid.jsonl").read_text(encoding="utf-8").splitlines()
    right = [str(json.loads(line)["label" if task == "classes" else "target"]) for line in data]
    assert [row["target"] for row in rows] == right
    assert ("confusion" in found) == (task == "classes")
    if task == "classes":  # counted by hand
        labels, counts = found["confusion"]["labels"], found["confusion"]["counts"]
        pairs = Counter((row["target"], row["prediction"]) for row in rows)
        assert counts == [[pairs[a, b] for b in labels] for a in labels]
    if task == "nlg":
        assert any(row["prediction"] for row in rows)
    hypotheses, references = tmp_path / "hyp", tmp_path / "ref"
    hypotheses.write_text("".join(row["prediction"] + "\n" for row in rows), encoding="utf-8")
    references.write_text("".join(text + "\n" for text in right), encoding="utf-8")
    for name, value in found["metrics"].items():
        module, _, options = name.partition(":")
        words = [w for o in filter(None, options.split(",")) for w in ("--" + o).split("=")]
        scored = server.run("score", module, hypotheses, references, *words, "--json", "-q")
        assert json.loads(scored.stdout)["score"] == value


@pytest.mark.parametrize(
    ("task", "options", "warned"),
    [
        ("nlg", ("--length-penalty", "0.5"), ["--length-penalty: has no effect without --beam"]),
        ("nlg", ("--length-penalty", "0.5", "--beam", "2", "--max-new-tokens", "2"), []),
        ("nlg", ("--length-penalty-form", "gnmt", "--beam", "2", "--max-new-tokens", "2"), []),
        (
            "nlg",
            ("--length-penalty-form", "gnmt"),
            ["--length-penalty-form: has no effect without --beam"],
        ),
        (
            "classes",
            ("--beam", "2", "--max-new-tokens", "2"),
            [
                f"--{name}: has no effect here: this checkpoint writes no answers"
                for name in ("beam", "max-new-tokens")
            ],
        ),
        (
            "classes",
            ("--attention", "TMP/a.html", "--beam", "2", "--text-key", "x"),
            [
                "--text-key: has no effect here: a task reads the columns of its objective",
                "--beam: has no effect here: this checkpoint writes no answers",
            ],
        ),
    ],
)
def test_eval_warns_of_options_without_effect(
    server: Server, folder: Path, tmp_path: Path, task: str, options: tuple[str, ...],
    warned: list[str]
) -> None:  # fmt: skip
    given = [each.replace("TMP", str(tmp_path)) for each in options]
    ended = server.run("eval", _run(folder, task), "-q", "--json", *given)
    assert ended.code == 0, ended.stderr
    json.loads(ended.stdout)
    lines = [line.partition("warning: ")[2] for line in ended.stderr.splitlines()]
    assert [line for line in lines if "has no effect" in line] == warned


def test_eval_says_that_lines_have_no_text_key(server: Server, folder: Path) -> None:
    given = ("--data", folder / "cpm_ant/valid.txt", "--text-key", "x", "-q")
    ended = server.run("eval", _run(folder, "text"), *given)
    assert ended.code == 0, ended.stderr
    assert "--text-key: has no effect on files of the format text: " in ended.stderr


def test_eval_names_the_sentence_that_a_classifier_cannot_read(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    given = ("--attention", tmp_path / "a.html", "--sentence", "12")
    said = "--sentence: a model trained with classification cannot score text; leave it out"
    _refused(server.run("eval", _run(folder, "classes"), *given, "-q"), 2, said)


def test_eval_refuses_a_length_penalty_without_sense(server: Server, folder: Path) -> None:
    ended = server.run("eval", _run(folder, "nlg"), "--beam", "2", "--length-penalty", "500")
    assert (ended.code, ended.stdout) == (2, "")
    assert "nlpkit: --length-penalty 500.0: must be at most 20" in ended.stderr


def test_eval_draws_confusion_of_classes_alone(server: Server, folder: Path, tmp_path) -> None:
    pytest.importorskip("matplotlib")
    drawn = server.run("eval", _run(folder, "classes"), "--confusion", tmp_path / "c.png")
    assert drawn.code == 0, drawn.stderr
    assert "right \\ predicted" in drawn.stdout
    assert (tmp_path / "c.png").read_bytes()[:4] == b"\x89PNG"
    other = server.run("eval", _run(folder, "nlg"), "--confusion", tmp_path / "d.png")
    assert other.code == 2
    assert "was not trained to name classes" in other.stderr
    wrong = server.run("eval", _run(folder, "classes"), "--confusion", "c.svg")
    assert wrong.code == 2
    assert "name it FILE.png" in wrong.stderr


def test_eval_of_generated_text_counts_chinese_characters_by_default(
    server: Server, folder: Path
) -> None:
    table = server.run("eval", _run(folder, "nlg"))
    assert table.code == 0, table.stderr
    lines = dict(line.split() for line in table.stdout.splitlines())
    assert {"exact_match", "rouge:tokenize=zh", "bleu:tokenize=zh", "perplexity"} < lines.keys()
    # After 60 steps the model begins answers right; the word tokenizer would see nothing.
    assert float(lines["rouge:tokenize=zh"]) > 0
    plain = server.run("eval", _run(folder, "nlg"), "--metrics", "rouge")
    assert "--tokenize word drops" in plain.stderr


def test_eval_reads_data_from_a_file_compressed_or_stdin(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    run, source = _run(folder, "classes"), folder / "classes.valid.jsonl"
    packed = tmp_path / "rows.jsonl.gz"
    packed.write_bytes(gzip.compress(source.read_bytes()))
    own = _figures(server.run("eval", run, "--json"))
    assert _figures(server.run("eval", run, "--json", "--data", packed)) == own
    rows = source.read_text(encoding="utf-8")
    piped = _tiny.command("eval", run, "--json", "--data", "-", stdin=rows)
    assert piped.returncode == 0, piped.stderr
    assert json.loads(piped.stdout) == own
    assert "held-out data: stdin, read as jsonl\n" in piped.stderr  # not the copy in the cache


def test_eval_counts_the_rows_that_it_leaves_out_and_reads_a_stream_once(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "seeds" / "seed-1"
    shutil.copytree(_run(folder, "classes"), run)
    recipe = (run / "recipe.yaml").read_text(encoding="utf-8")
    assert "on_error: stop" in recipe
    (run / "recipe.yaml").write_text(recipe.replace("on_error: stop", "on_error: skip"))
    rows = _tiny_tasks.rows_of("classes", 8, 5)
    file = _tiny_tasks.write_rows(tmp_path / "rows.jsonl", [*rows, {"label": "bad"}])
    ended = server.run("eval", run, "--data", file, "--json")
    assert _figures(ended)["rows"] == 8
    assert "left out of what is evaluated: 1 malformed row\n" in ended.stderr
    assert "skipped " + str(file) + ":9: " in ended.stderr
    shutil.copytree(run, run.with_name("seed-2"))
    _refused(server.run("eval", run.parent, "--data", "-"), 2, "--data -: ")


def test_eval_outside_a_run_needs_data_and_finds_label_names_in_the_checkpoint(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    run = _run(folder, "classes")
    names = json.loads((run / "checkpoints/latest/config.json").read_text())["id2label"]
    assert names == {"0": "bad", "1": "good", "2": "so so"}
    alone = tmp_path / "alone"
    shutil.copytree(run / "checkpoints/latest", alone)
    _refused(server.run("eval", alone), 2, f"{alone} belongs to no run; name the data: --data FILE")
    found = _figures(server.run("eval", alone, "--json", "--data", folder / "classes.valid.jsonl"))
    own = _figures(server.run("eval", run, "--json"))
    assert {**found, "checkpoint": ""} == {**own, "checkpoint": ""}
    # Rows without one of the classes: it is the checkpoint that knows them.
    rows = _tiny_tasks.rows_of("classes", 30, 5)
    some = [row for row in rows if row["label"] != "bad"]
    file = _tiny_tasks.write_rows(tmp_path / "some.jsonl", some)
    assert _figures(server.run("eval", alone, "--json", "--data", file))["rows"] == len(some)
    other = _tiny_tasks.write_rows(tmp_path / "other.jsonl", [{"text": "天", "label": "ugly"}])
    _refused(server.run("eval", alone, "--data", other), 3, "other.jsonl:1: \"label\" is 'ugly'")


def test_eval_shows_an_undefined_score_as_undefined_and_null(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    row = _tiny_tasks.rows_of("nlu", 1, 3)[0]
    file = _tiny_tasks.write_rows(tmp_path / "same.jsonl", [row] * 3)
    arguments = ("eval", _run(folder, "nlu"), "--data", file, "--metrics", "pearson,accuracy")
    found = _figures(server.run(*arguments, "--json"))
    assert found["metrics"]["pearson"] is None
    assert "pearson     undefined" in server.run(*arguments).stdout


@pytest.mark.parametrize(
    ("task", "metrics", "text"),
    [
        ("text", "bleu", "trained on running text or conversations; it has no answers to score"),
        ("nlu", "rougge", "--metrics rougge: no 'rougge', did you mean rouge?"),
        ("nlu", "bleu:tokenze=zh", "bleu has no option 'tokenze', did you mean tokenize?"),
        ("nlu", "rouge:tokenize=zk", "tokenize is 'zk'; must be word, unicode, zh"),
        ("nlu", "perplexity", "--metrics perplexity: does not compare answers"),
        ("nlu", "bm25", "--metrics bm25: does not compare answers"),
        ("nlu", "accuracy,accuracy", "--metrics accuracy: given twice"),
        ("classes", "pearson", "--metrics pearson cannot score answers such as "),
    ],
)
def test_eval_metrics_that_cannot_be_are_refused_in_one_line(
    server: Server, folder: Path, task: str, metrics: str, text: str
) -> None:
    ended = server.run("eval", _run(folder, task), "--metrics", metrics, "-q")
    _refused(ended, 2, text)
    assert ended.stdout == ""


@pytest.mark.parametrize(
    ("task", "option"),
    [
        ("classes", "--metrics=pearson"),
        ("nlg", "--metrics=f1:average=binary"),
        ("text", "--metrics=bleu"),
        ("nlg", "--max-new-tokens=999"),
        ("nlg", "--beam=999"),
    ],
)
def test_eval_option_that_cannot_be_is_refused_before_rows_are_computed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, task: str, option: str
) -> None:
    monkeypatch.setattr(held_out.HeldOut, "evaluate", lambda *_: 1 / 0)
    assert cli.run(["eval", str(_run(folder, task)), option, "-q"]) == 2


def test_eval_predictions_of_running_text_are_refused_and_not_written(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "p.jsonl"
    ended = server.run("eval", _run(folder, "text"), "--predictions", file, "-q")
    _refused(ended, 2, "--predictions: ")
    assert "or conversations; it has no answers to write" in ended.stderr
    assert not file.exists()


def test_eval_predictions_do_not_replace_the_rows_that_are_read(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = folder / "nlu.valid.jsonl"
    before = file.read_bytes()
    monkeypatch.setenv("HOME", str(folder))
    # As `--predictions=~/FILE` comes from a shell.
    for data, out in (((), file), (("--data", folder / "nlu.val*.jsonl"), f"~/{file.name}")):
        ended = server.run("eval", _run(folder, "nlu"), *data, "--predictions", out, "-q")
        _refused(ended, 2, "is read here, and would be replaced")
    assert file.read_bytes() == before


def test_named_scores_are_split_at_commas_that_begin_a_name() -> None:
    found = named.split(["rouge:tokenize=zh,variant=rouge1,accuracy", " bleu:tokenize=zh "])
    assert found == ["rouge:tokenize=zh,variant=rouge1", "accuracy", "bleu:tokenize=zh"]
    module, options = named.resolve("bleu:lowercase=true,smooth-value=0.5")
    assert module.__name__ == "nlpkit.score.metrics.bleu"
    assert options == {"lowercase": True, "smooth_value": 0.5}
    for wrong, what in (
        ("bleu:lowercase=1", "true or false"),
        ("chrf:char_order=x", "not an integer"),
        ("bleu:lowercase", "lowercase needs a value"),
        ("", "a name is empty"),
        ("accuracy:x=1", "it has none"),
    ):
        with pytest.raises(UsageError, match=what):
            named.split([wrong])


def test_named_scores_import_no_torch() -> None:
    code = "import sys; from nlpkit.score import named; named.split(['f1']); "
    code += "assert not {'torch', 'pydantic'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
