"""`nlpkit report --csv`: the records of runs on stdout, and nothing else."""

import csv
import io
import json
from pathlib import Path

import pytest

from nlpkit import cli
from tests import _tiny


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    path = _tiny.write(tmp_path_factory.mktemp("csv"), documents=40)
    made = []
    for number in (1, 2):
        made.append(path.parent / f"run{number}")
        _tiny.pretrain(path, made[-1], f"seed={number}", "train.steps=6", "train.log_every=2")
    return made


def _printed(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    assert cli.run(["report", *map(str, runs), "--csv", "-q"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert not any((run / "report.html").exists() for run in runs)
    return [*csv.DictReader(io.StringIO(printed.out))]


def test_rows_are_the_records_of_the_runs(runs: list[Path], capsys) -> None:
    rows = _printed(runs, capsys)
    for run in runs:
        own = {int(row["step"]): row for row in rows if row["run"] == run.name}
        lines = (run / "metrics.jsonl").read_text("utf-8").splitlines()
        records = [json.loads(line) for line in lines]
        assert {*own} == {record["step"] for record in records}
        for record in records:
            row = own[record["step"]]
            if (found := record.get("held_out")) is None:
                expected = {"loss": record["loss"], "tokens": record["tokens"], "lr": record["lr"]}
                expected |= {f"loss.{name}": each for name, each in record["losses"].items()}
            else:
                expected = {f"held_out.loss.{name}": v for name, v in found["losses"].items()}
                expected |= {"held_out.loss": found["loss"]}
                expected |= {"held_out.perplexity": found["perplexity"]}
            # The numbers are those of metrics.jsonl to the last digit.
            assert {name: float(row[name]) for name in expected} == expected


def test_step_without_an_evaluation_has_empty_cells(runs: list[Path], capsys) -> None:
    rows = _printed(runs[:1], capsys)
    judged = [row for row in rows if row["held_out.loss"]]
    assert judged
    assert len(judged) < len(rows)
    assert {row["run"] for row in rows} == {"run1"}


@pytest.mark.parametrize("more", [["-o", "x.csv"], ["--json"]])
def test_other_outputs_are_refused(runs: list[Path], capsys, more: list[str]) -> None:
    assert cli.run(["report", str(runs[0]), "--csv", *more]) == 2
    assert capsys.readouterr().err == (
        "nlpkit: --csv prints to stdout; leave -o, --json and --rows out, and redirect: "
        "> FILE.csv\n"
    )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--push", "a/b", "-o", "x.html"], "--push prints commands alone; leave -o, --csv and "),
        (["--rows", "/x.jsonl"], "--rows /x.jsonl: is one file for all runs; name it within each"),
    ],
)
def test_options_without_sense_are_refused(runs: list[Path], capsys, more, said) -> None:
    assert cli.run(["report", *map(str, runs), *more]) == 2
    assert capsys.readouterr().err.startswith(f"nlpkit: {said}")
