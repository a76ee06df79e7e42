"""The files of experiments/: each is read and, slowly, run small over tiny texts as they name."""

import gzip
import json
import random
from pathlib import Path

import pytest

from nlpkit import cli, recipe
from nlpkit.evaluate import suite
from nlpkit.evaluate.experiment import Experiment

WORDS = ["the", "old", "dog", "saw", "a", "red", "bird", "near", "my", "house", "today"]
FILES = sorted((Path(__file__).parents[2] / "experiments").glob("*.yaml"))
CLAIMS = [file for file in FILES if "families" not in file.stem]  # these have a page of their own


def write_rows(path: Path, rows: list[dict[str, object]]) -> None:
    """Write a file of JSON lines, compressed if its name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a little text under each name that the experiments use."""
    folder, draw = tmp_path_factory.mktemp("texts"), random.Random(0)

    def words(count: int = 9) -> str:
        return " ".join(draw.choices(WORDS, k=count))

    for corpus in ("en_10m", "zh_20m"):
        for name in ("other", "valid"):
            rows: list[dict[str, object]] = [
                {"text": f"{words()}. {words()}.\n{words()}. {words()}."} for _ in range(40)
            ]
            write_rows(folder / corpus / f"{name}.jsonl.gz", rows)
    for part in ("train", "dev"):
        sentences: list[dict[str, object]] = [{"text": words(), "label": i % 2} for i in range(40)]
        for task in ("sst2", "cola"):
            write_rows(folder / f"en_task/{task}.{part}.jsonl", sentences)
        write_rows(folder / f"zh_task/chnsenticorp.{part}.jsonl", sentences)
        for task, classes in (("scitail", 2), ("snli", 3)):
            write_rows(
                folder / f"en_task/{task}.{part}.jsonl",
                [
                    {"premise": words(), "hypothesis": words(), "label": i % classes}
                    for i in range(40)
                ],
            )
        # Rows differ: those that are equal are on one side of the search's split.
        choices: list[dict[str, object]] = [
            {
                "question": "effect",
                "premise": words(),
                "options": [words(), words()],
                "label": i % 2,
            }
            for i in range(40)
        ]
        write_rows(folder / f"en_task/copa.{part}.jsonl", choices)
    (folder / "en_lm").mkdir()
    for name in ("tinyshakespeare", "wikitext2.valid", "wikitext2.test"):
        text = "\n\n".join(words(30) for _ in range(80))
        (folder / f"en_lm/{name}.txt").write_text(text)
    (folder / "parallel").mkdir()
    for part in ("train", "val"):
        for language in ("de", "en"):
            text = "\n".join(words() for _ in range(60)) + "\n"
            (folder / f"parallel/multi30k.{part}.{language}").write_text(text)
    pair = {"sentence_good": words(), "sentence_bad": words()}
    write_rows(folder / "pairs/blimp/agreement.jsonl", [pair] * 4)
    return folder


def test_there_are_experiments() -> None:
    assert len(CLAIMS) >= 22


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_experiment_says_what_a_reader_needs_and_its_recipes_are_whole(file, texts) -> None:
    found, _ = suite.read(file, str(file), Experiment)
    assert found.name == file.stem  # so that two files never share runs
    assert found.claim
    assert found.paper
    assert found.figure
    assert found.minutes
    assert found.seeds >= 3  # fewer cannot reach the level
    assert "--folder has " in file.read_text("utf-8")
    assert file not in CLAIMS or len(file.read_text("utf-8").splitlines()) <= 52
    for name in found.conditions:
        trained = found.conditions[found.find_trained(name)]
        resolved = recipe.load(trained.recipe, found.list_changes(name, str(texts))).recipe
        for source in (*resolved.data.train, *resolved.data.valid):
            for path in source.files:
                assert list(texts.glob(str(Path(path).relative_to(texts)))), path
        for path in resolved.eval.pairs or []:
            assert Path(path).is_dir()


def test_the_page_of_claims_has_one_row_for_each_file_as_it_is() -> None:
    page = (FILES[0].parents[1] / "docs/claims.md").read_text("utf-8")
    for file in CLAIMS:
        found, _ = suite.read(file, str(file), Experiment)
        said = f"{found.claim} ({found.paper}) | {found.figure} | {found.minutes:g} |"
        row = f"| [{file.stem}](../experiments/{file.name}) | {said}"
        assert page.count(f"experiments/{file.name}") == page.count(row) == 1, row


@pytest.mark.slow
@pytest.mark.parametrize("file", CLAIMS, ids=lambda file: file.stem)
def test_an_experiment_runs_to_its_verdicts(file, texts, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    found, _ = suite.read(file, str(file), Experiment)
    assert found.equal is not None
    small = {"seeds": "1", "rates": "null", "tokenizer.vocab_size": "300"}
    timed = found.equal.cpu_time
    small |= {"equal.cpu_time": "5s"} if timed else {"equal.tokens": "6000"}
    sets = [f"--set={key}={value}" for key, value in small.items()]
    assert cli.run(["compare", str(file), "--folder", str(texts), *sets, "-q", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert len(printed["expectations"]) == len(found.expect)  # each figure is one that a run has
