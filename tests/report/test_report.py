"""`nlpkit report`: what the page says is what the files say, in a page that is safe and alone."""

import errno
import json
import logging
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, BinaryIO
from xml.etree import ElementTree

import numpy as np
import pytest

from nlpkit import cli, report
from nlpkit.report import curves, figures, svg
from tests import _tiny

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
VOID = {"meta", "link", "br", "img", "input", "hr"}
EVIL = '</script><script>alert(1)</script><img src=x onerror="alert(1)">'


class Page(HTMLParser):
    """A page as elements; fails where an end tag does not fit."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        self.texts.setdefault(tag, []).append("")
        if tag == "table":
            self.rows: list[list[str]] = []
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag == "table":
            self.tables[self.texts["caption"][-1]] = self.rows

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts[self.open[-1]][-1] += data
        if self.open and self.open[-1] in ("th", "td"):
            self.rows[-1][-1] += data

    def table(self, caption: str) -> list[list[str]]:
        (found,) = [rows for name, rows in self.tables.items() if caption in name]
        return found

    def curves(self) -> dict[str, list[dict[str, Any]]]:
        return json.loads(self.texts["script"][0])


def page_of(*runs: Path, out: Path) -> Page:
    report.write(list(runs), out)
    return Page(out.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three real runs: `b` repeats `a`, `c` has another seed and learning rate."""
    folder = tmp_path_factory.mktemp("runs")
    recipe = _tiny.write(folder / "input")
    cache = f"data.cache={json.dumps(str(folder / 'cache'))}"
    for name, sets in (("a", ()), ("b", ()), ("c", ("seed=2", "train.lr=5.0e-3"))):
        _tiny.pretrain(recipe, folder / name, cache, *sets)
    return {name: folder / name for name in "abc"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run written by hand that has made 20 steps and saved none."""
    return write_run(tmp_path / "byhand", 20)


def write_run(path: Path, steps: int, every: int = 5, spike: int = 0) -> Path:
    draw = random.Random(0)
    path.mkdir(parents=True)
    path.joinpath("recipe.yaml").write_text("name: x\nseed: 1\ntrain: {steps: 40, lr: 0.001}\n")
    path.joinpath("run.json").write_text('{"finished": false, "data": "00ff", "seed": 1}\n')
    with open(path / "metrics.jsonl", "w", encoding="utf-8") as file:
        for step in range(1, steps + 1):
            loss = 77.0 if step == spike else 3 + draw.random()
            record = {
                "step": step, "tokens": 100 * step, "targets": 40, "loss": loss,
                "losses": {"one": loss, "two": None if step % 2 else loss}, "lr": 1e-3,
                "grad_norm": draw.random(), "seconds": 0.1, "tokens_per_second": 1000.0,
                "memory_bytes": 2**20,
            }  # fmt: skip
            file.write(json.dumps(record) + "\n")
            if step % every == 0:
                held = {"loss": loss, "perplexity": 20.0, "bits_per_character": None,
                        "losses": {"one": loss}, "targets": 9}  # fmt: skip
                file.write(json.dumps({"step": step, "tokens": 1, "held_out": held}) + "\n")
    return path


def change(run: Path, step: int, **values: Any) -> None:
    """Set values of the record of `step`."""
    path = run / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for record in records:
        if record["step"] == step and "held_out" not in record:
            record.update(values)
    path.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")


def test_page_is_well_formed_labelled_and_alone(runs: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    page = page_of(*runs.values(), out=out)
    assert len(page.texts["h1"]) == 1
    names = [tag for tag, _ in page.elements]
    assert (
        names.count("table") == len(page.tables) == 6
    )  # facts, 3 evaluations, recipe, differences
    charts = [a for tag, a in page.elements if tag == "svg" and a.get("role") == "img"]
    assert len(charts) == 7 == len(page.texts["figcaption"])
    titles = page.texts["title"]
    assert len(titles) == 8
    assert all(titles)
    assert all(a.get("scope") for tag, a in page.elements if tag == "th")
    assert ("html", {"lang": "en"}) in page.elements
    for tag, attributes in page.elements:
        assert tag not in VOID - {"meta"}
        assert not {"src", "href", "xlink:href", "srcset", "action"} & attributes.keys(), tag
        assert not [name for name in attributes if name.startswith("on")]
    text = out.read_text("utf-8")
    assert not re.search(r"\w+://|url\(|@import", text)


def test_page_figures_are_those_of_the_files(runs: dict[str, Path], tmp_path: Path) -> None:
    page = page_of(runs["a"], out=tmp_path / "r.html")
    records = _tiny.metrics(runs["a"])
    taken = [r for r in records if "held_out" not in r]
    held = [r for r in records if "held_out" in r]
    assert (len(taken), len(held)) == (12, 3)
    curves = page.curves()
    for key, pick in (
        ("loss", lambda r: r["loss"]),
        ("loss.infilling", lambda r: r["losses"]["infilling"]),
        ("lr", lambda r: r["lr"]),
        ("grad_norm", lambda r: r["grad_norm"]),
    ):
        line = curves[key][0]
        assert line["x"] == [r["step"] for r in taken]
        assert line["y"] == [pytest.approx(pick(r), rel=1e-5) for r in taken]
    assert curves["loss"][1]["y"] == [pytest.approx(r["held_out"]["loss"], rel=1e-5) for r in held]
    best = min(held, key=lambda r: r["held_out"]["loss"])
    rows = page.table("evaluations")
    parts = ["generation", "infilling"]
    assert rows[0] == ["step", "loss (nats/token)", *parts, "perplexity", "bits/character"]
    for row, record in zip(rows[1:], held, strict=True):
        f, mark = record["held_out"], " (best)" if record is best else ""
        assert row == [
            f"{record['step']}{mark}", f"{f['loss']:.4f}",
            *[f"{f['losses'][p]:.4f}" for p in parts],
            f"{f['perplexity']:,.2f}", f"{f['bits_per_character']:.3f}",
        ]  # fmt: skip
    facts = {row[0]: row[1] for row in page.table("Facts")}
    status = json.loads((runs["a"] / "run.json").read_text("utf-8"))
    assert facts["state"] == "finished"
    assert facts["steps"] == "12 of 12 planned"
    assert facts["tokens"] == f"{taken[-1]['tokens']:,}"
    assert facts["last training loss"] == f"{taken[-1]['loss']:.4f} nats/token"
    where = f"{best['held_out']['loss']:.4f} nats/token at step {best['step']}"
    assert facts["best held-out loss"] == where
    entropy = f"{status['held_out_unigram_entropy']:.4f} nats/token"
    assert facts["unigram entropy of the held-out text"] == entropy
    for key in ("precision", "seed", "processes", "threads", "machine", "torch", "python"):
        assert facts[key] == str(status[key])
    assert facts["code"] == status["code"][:12]


def test_facts_with_parts_are_words(run: Path, tmp_path: Path) -> None:
    path = run / "run.json"
    pairs = {"judged": 100, "method": "log-probability", "sha256": "0" * 64}
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | {"pairs": pairs}))
    facts = {row[0]: row[1] for row in page_of(run, out=tmp_path / "r.html").table("Facts")}
    assert facts["pairs"] == "judged 100, method log-probability, sha256 000000000000"


def test_differences_are_exactly_the_differing_settings(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    page = page_of(runs["a"], runs["c"], out=tmp_path / "r.html")
    rows = page.table("3 settings differ")
    assert rows[:4] == [
        ["setting", "a", "c"],
        ["seed", "1", "2"],
        ["out", json.dumps(str(runs["a"])), json.dumps(str(runs["c"]))],
        ["train.lr", "0.01", "0.005"],
    ]
    assert all(row[1] == row[2] for row in rows[4:])
    marked = [text for tag, text in page.elements if text.get("class") == "differs"]
    assert len(marked) == 6


def test_repeated_run_is_equal_and_another_seed_differs(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    page = page_of(runs["a"], runs["b"], runs["c"], out=tmp_path / "r.html")
    head, *rows = page.table("bit for bit")
    assert head == ["", "b", "c"]
    assert [row[1:] for row in rows] == [
        ["equal in all 12 common steps", "first differs at step 1"]
    ] * 2


def test_runs_that_part_in_the_middle_are_told_apart_there(run: Path, tmp_path: Path) -> None:
    change(run, 5, grad_norm=None)  # in both: no difference
    other = shutil.copytree(run, tmp_path / "other")
    change(other, 7, loss=3.25)
    change(other, 9, targets=41)
    page = page_of(run, other, out=tmp_path / "r.html")
    assert [row[1] for row in page.table("bit for bit")[1:]] == [
        "first differs at step 9",
        "first differs at step 7",
    ]
    assert page.table("none differs")[1:] == [
        ["name", '"x"', '"x"'],
        ["seed", "1", "1"],
        ["train.steps", "40", "40"],
        ["train.lr", "0.001", "0.001"],
    ]


def test_words_from_files_are_never_markup(run: Path, tmp_path: Path) -> None:
    evil = run.rename(tmp_path / '<script>alert(1)<img src=x onerror="alert(1)">')
    settings = f"name: {json.dumps(EVIL)}\n{json.dumps(EVIL)}: 1\ntrain: {{steps: 40}}\n"
    evil.joinpath("recipe.yaml").write_text(settings, encoding="utf-8")
    status = {"machine": EVIL, EVIL: EVIL, "data": EVIL, "bell": "\x07"}
    evil.joinpath("run.json").write_text(json.dumps(status), encoding="utf-8")
    change(evil, 3, losses={EVIL: 1.0, "one": 2.0, "half \ud800": 1.0})
    page = page_of(evil, out=tmp_path / "r.html")
    tags = [tag for tag, _ in page.elements]
    assert tags.count("script") == 2
    assert "img" not in tags
    assert page.texts["h1"] == [f"Run {evil.name}"]
    assert dict(page.table("Facts"))["machine"] == EVIL
    assert f"loss.{EVIL}" in page.curves()
    assert not {*"<>&"} & {*page.texts["script"][0]}
    drawn = report.write([evil], tmp_path / "r.svg")
    names = {each.tag.rpartition("}")[2] for each in ElementTree.parse(drawn).iter()}
    assert not {"script", "img", "image", "a", "foreignObject"} & names
    assert f"Run {evil.name}" in _texts(drawn)


def test_half_last_line_is_left_out(run: Path, tmp_path: Path) -> None:
    metrics = run / "metrics.jsonl"
    whole = metrics.read_bytes()
    metrics.write_bytes(whole + b'{"step": 21, "lo')
    facts = dict(page_of(run, out=tmp_path / "r.html").table("Facts"))
    assert facts["steps"] == "20 of 40 planned"
    assert facts["state"] == "not finished"
    metrics.write_bytes(whole.removesuffix(b"\n"))  # whole, only its end is missing
    page = page_of(run, out=tmp_path / "r.html")
    assert page.table("evaluations")[-1][0].startswith("20")


def test_records_of_a_finished_run_that_are_cut_are_refused(run: Path, capsys) -> None:
    (run / "run.json").write_text('{"finished": true, "step": 20}\n')
    metrics = run / "metrics.jsonl"
    lines = metrics.read_text("utf-8").splitlines(keepends=True)
    metrics.write_text("".join(lines[:-2]), encoding="utf-8")
    assert cli.run(["report", str(run)]) == 4
    said = "cut: ends at step 19, and the run at step 20; restore it"
    assert capsys.readouterr().err == f"nlpkit: {metrics}: {said}\n"
    metrics.write_text("".join(lines)[:-9], encoding="utf-8")  # in the last evaluation
    assert cli.run(["report", str(run)]) == 4
    assert capsys.readouterr().err.startswith(f"nlpkit: {metrics}:{len(lines)}: damaged: ")


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 3, "loss"',
        "[3]",
        '{"step": 1}',
        '{"loss": 1}',
        '{"step": 3, "loss": "low"}',
        '{"step": 3, "losses": {"one": [1]}}',
        '{"step": 3, "held_out": {"loss": null}}',
    ],
)
def test_damaged_line_is_named(run: Path, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = run / "metrics.jsonl"
    lines = metrics.read_text("utf-8").splitlines()
    metrics.write_text("\n".join([*lines[:2], line, *lines[3:]]) + "\n", encoding="utf-8")
    assert cli.run(["report", str(run)]) == 4
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"nlpkit: {run}/metrics.jsonl:3: damaged: expected a step from ")
    assert not (run / "report.html").exists()


def test_what_is_no_run_is_refused_in_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty, new = tmp_path / "empty", tmp_path / "new"
    empty.mkdir()
    new.mkdir()
    shutil.copy(run / "recipe.yaml", new)
    for arguments, code, told in (
        ([tmp_path / "none"], 4, f"{tmp_path}/none: no such run directory"),
        ([empty], 4, f"{empty}: not a run directory: it has no recipe.yaml"),
        ([new], 4, f"{new}: nothing to report yet: no step is in metrics.jsonl"),
        ([run, "-o", tmp_path / "no/r.html"], 4,
         f"{tmp_path}/no/r.html: cannot be written: No such file or directory"),
        ([run, "-o", tmp_path / "no/r.png"], 4,
         f"{tmp_path}/no/r.png: cannot be written: No such file or directory"),
        ([run, "-o", "r.pdf"], 2, "r.pdf: a report ends in .html, .svg or .png"),
    ):  # fmt: skip
        assert cli.run(["report", *map(str, arguments)]) == code
        assert capsys.readouterr() == ("", f"nlpkit: {told}\n")
    (new / "metrics.jsonl").write_text("")
    assert cli.run(["report", str(new)]) == 4
    target = tmp_path / "taken.html"
    target.mkdir()
    before = sorted(tmp_path.iterdir())
    assert cli.run(["report", str(run), "-o", str(target)]) == 4
    assert sorted(tmp_path.iterdir()) == before  # no draft is left


def test_picture_that_cannot_be_finished_leaves_the_one_before_and_no_draft(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from matplotlib.figure import Figure

    picture = tmp_path / "r.png"
    picture.write_bytes(b"the one before")

    def fill_the_disk(figure: Figure, file: BinaryIO, **options: object) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", fill_the_disk)
    assert cli.run(["report", str(run), "-o", str(picture)]) == 4
    said = f"nlpkit: {picture}: cannot be written: no space left on the disk\n"
    assert capsys.readouterr() == ("", said)
    assert [each for each in tmp_path.iterdir() if each.is_file()] == [picture]
    assert picture.read_bytes() == b"the one before"


def test_command_prints_the_file_and_imports_no_torch(run: Path, tmp_path: Path) -> None:
    program = (
        "import sys\nfrom nlpkit import cli\ncode = cli.run(sys.argv[1:])\n"
        "heavy = {'torch', 'transformers', 'accelerate', 'matplotlib'} & sys.modules.keys()\n"
        "print(*heavy, file=sys.stderr)\nsys.exit(code)\n"
    )
    for arguments, file in (([run], run / "report.html"), ([run, run], Path("report.html"))):
        done = subprocess.run(
            [sys.executable, "-c", program, "report", *map(str, arguments)],
            capture_output=True, text=True, cwd=tmp_path, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{file}\n", "\n")
        assert (tmp_path / file).read_bytes().startswith(b"<!DOCTYPE html>")
    page = Page((tmp_path / "report.html").read_text("utf-8"))
    assert page.table("Facts")[0][1:] == [run.name]  # which is named twice


@pytest.mark.parametrize(
    "ending", ["html", *(pytest.param(each, marks=pytest.mark.slow) for each in ("svg", "png"))]
)
def test_same_runs_give_the_same_bytes(runs: dict[str, Path], tmp_path: Path, ending: str) -> None:
    files = [report.write([*runs.values()], tmp_path / f"{n}.{ending}") for n in range(2)]
    first, second = (file.read_bytes() for file in files)
    assert first == second
    if ending == "png":
        assert first.startswith(b"\x89PNG\r\n\x1a\n")
    elif ending == "svg":
        texts = _texts(tmp_path / "0.svg")
        assert {"a", "b", "c", "Loss, nats/token", "Peak memory, MiB"} <= {*texts}


def _texts(path: Path) -> list[str]:
    return [
        (e.text or "").strip() for e in ElementTree.parse(path).iter() if e.tag.endswith("text")
    ]


def test_steps_on_the_axis_are_integers(tmp_path: Path) -> None:
    run = write_run(tmp_path / "short", 2, every=2)
    (chart,) = [c for c in curves.make_charts(report.read([run])) if c.key == "loss"]
    assert re.findall(r'text-anchor="middle">(.*?)</text>', svg.draw(chart)) == ["1", "2"]


def test_png_without_matplotlib_says_what_to_install(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.run(["report", str(run), "-o", str(run / "r.png")]) == 2
    told = "nlpkit: drawing: matplotlib is not installed (pip install matplotlib)\n"
    assert capsys.readouterr() == ("", told)


def test_long_run_loses_no_spike(tmp_path: Path) -> None:
    run = write_run(tmp_path / "long", 20_000, every=200, spike=10_861)
    report.write([run], tmp_path / "r.html")
    page = Page((tmp_path / "r.html").read_text("utf-8"))
    line = page.curves()["loss"][0]
    assert len(line["x"]) == 500
    losses = [
        record["loss"]
        for text in (run / "metrics.jsonl").read_text("utf-8").splitlines()
        if "held_out" not in (record := json.loads(text))
    ]
    # 20,000 steps in 500 intervals of 40
    assert line["y"][0] == pytest.approx(sum(losses[:40]) / 40, rel=1e-5)
    assert line["y"][271] == pytest.approx(sum(losses[10_840:10_880]) / 40, rel=1e-5)
    assert any("means of 500 equal intervals" in text for text in page.texts["p"])
    assert "the last 20 and the best" in next(c for c in page.tables if "100 evaluations" in c)
    band = next(a for tag, a in page.elements if tag == "polygon")
    heights = [float(pair.split(",")[1]) for pair in (band["points"] or "").split()]
    assert len(heights) == 1000
    # y runs from 0 (or 4 % below) to 4 % above 77: the spike ends within 4 % of the top
    assert min(heights) < svg.TOP + 0.05 * (svg.BOTTOM - svg.TOP)


def test_thin_takes_means_of_what_is_there() -> None:
    x = np.arange(1.0, 2001.0)
    y = np.where(x <= 5, np.nan, x)
    line = curves.thin_out("n", 0, x, y)
    assert line.low is not None
    assert line.high is not None
    assert np.isnan([line.y[0], line.low[0], line.high[0]]).all()  # 1 to 4 are missing
    assert (line.y[1], line.low[1], line.high[1]) == (7.0, 6.0, 8.0)  # (5), 6, 7, 8
    assert len(curves.thin_out("n", 0, x[:1500], y[:1500]).x) == 1500


@pytest.mark.parametrize(
    ("low", "high", "values", "texts"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10], ["0", "2", "4", "6", "8", "10"]),
        (1, 20_000, [5000, 10_000, 15_000, 20_000], ["5k", "10k", "15k", "20k"]),
        (0, 0.0021, [0, 0.0005, 0.001, 0.0015, 0.002],
         ["0", "0.5e-3", "1e-3", "1.5e-3", "2e-3"]),
    ],
)  # fmt: skip
def test_ticks_are_round_numbers(
    low: float, high: float, values: list[float], texts: list[str]
) -> None:
    found = svg.choose_ticks(low, high, 5)
    assert found == values
    assert svg.shorten(found) == texts


def test_powers_are_round_and_few() -> None:
    assert svg.choose_powers(0.3, 40) == [0.5, 1, 2, 5, 10, 20]
    assert svg.choose_powers(0.05, 90) == [0.1, 0.3, 1, 3, 10, 30]
    assert svg.choose_powers(0.9e-9, 1.1e9) == [1e-9, 1e-6, 1e-3, 1, 1e3, 1e6, 1e9]


def test_gradient_norm_that_explodes_is_drawn_on_a_logarithmic_axis(run: Path) -> None:
    def drawn() -> str:
        (chart,) = [c for c in curves.make_charts(report.read([run])) if c.key == "grad_norm"]
        return " ".join(re.findall("<text.*?>(.*?)</text>", svg.draw(chart)))

    change(run, 1, grad_norm=1.0)
    for step in range(2, 21):
        change(run, step, grad_norm=2.0)
    assert drawn() == "1 1.2 1.4 1.6 1.8 2 5 10 15 20 step"  # the axis is 0.96 to 2.04
    change(run, 9, grad_norm=1000.0)
    assert drawn() == "1 3 10 30 100 300 1000 5 10 15 20 step"


@pytest.mark.slow
def test_run_of_one_step_has_a_page_and_a_picture(tmp_path: Path) -> None:
    run = write_run(tmp_path / "new", 1)
    page = page_of(run, out=tmp_path / "r.html")
    assert dict(page.table("Facts"))["steps"] == "1 of 40 planned"
    assert "new: no held-out evaluation yet." in page.texts["p"]
    assert ("circle", "f0") in [(tag, a.get("class")) for tag, a in page.elements]
    for ending in ("svg", "png"):
        report.write([run], tmp_path / f"r.{ending}")


def _luminance(colour: str) -> float:
    """WCAG 2.1's relative luminance of `#rrggbb`."""
    values = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("dark", "page"), [(0, "#f6f7f9"), (1, "#1d2126")])
def test_curves_stand_out_from_the_page(dark: int, page: str) -> None:
    for colours in svg.PALETTE:
        a, b = sorted((_luminance(colours[dark]), _luminance(page)))
        assert (b + 0.05) / (a + 0.05) >= 4.5


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    """A function that runs a real browser on a page, and returns what it did."""
    if CHROMIUM is None:
        pytest.skip("no chromium is installed")

    def look(page: Path, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
             "--hide-scrollbars", f"--user-data-dir={tmp_path / 'profile'}",
             "--window-size=1000,1600", *options, page.as_uri()],
            capture_output=True, text=True, timeout=600, check=True,
        )  # fmt: skip

    return look


@pytest.mark.slow
def test_browser_shows_the_curves_light_and_dark(
    browser: Any, runs: dict[str, Path], tmp_path: Path
) -> None:
    from matplotlib.image import imread

    page = report.write([*runs.values()], tmp_path / "r.html")
    for dark in (0, 1):
        shot = tmp_path / f"{dark}.png"
        options = ["--blink-settings=preferredColorScheme=0"] if dark else []
        done = browser(page, f"--screenshot={shot}", *options)
        assert "CONSOLE" not in done.stderr  # neither an error nor something the policy forbids
        pixels = (imread(shot)[..., :3] * 255).round().astype(int)
        assert pixels.shape == (1600, 1000, 3)
        corner = [21, 24, 28] if dark else [255, 255, 255]
        assert pixels[0, 0].tolist() == corner
        assert 0.02 < (pixels != corner).any(axis=2).mean() < 0.9
        for number in range(3):  # the held-out curve of each run
            wanted = [int(svg.PALETTE[number][dark][i : i + 2], 16) for i in (1, 3, 5)]
            assert (pixels == wanted).all(axis=2).sum() > 50


@pytest.mark.slow
def test_browser_reads_out_the_numbers_at_the_pointer(
    browser: Any, run: Path, tmp_path: Path
) -> None:
    page = report.write([run], tmp_path / "r.html")
    text = page.read_text("utf-8")
    pointing = """<script>
const svg = document.querySelector('svg[data-key="loss"]'), box = svg.getBoundingClientRect();
svg.dispatchEvent(new PointerEvent('pointermove', {clientX: box.right, clientY: box.top}));
</script></body>"""
    # Without the policy, which would rightly forbid this script.
    open_page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    page.write_text(open_page.replace("</body>", pointing), encoding="utf-8")
    dom = browser(page, "--dump-dom").stdout
    last = Page(text).curves()["loss"]
    told = " · ".join(f"{line['name']} {line['y'][-1]} (step 20)" for line in last)
    assert f'<p class="read">{told}</p>' in dom
    # Under the policy a foreign script does not run.
    page.write_text(text.replace("</body>", pointing), encoding="utf-8")
    done = browser(page, "--dump-dom")
    assert told not in done.stdout
    assert "Content Security Policy" in done.stderr


def test_characters_without_a_font_are_told_once(tmp_path, monkeypatch, capfd) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(figures, "CJK_FONTS", ("Noto Sans CJK SC not installed",))
    weights = np.ones((2, 2))
    for name, tokens, told in (("zh", ["中", "文"], 1), ("en", ["a", "b"], 0)):
        path = tmp_path / f"{name}.png"
        figures.alignment_figure([figures.Alignment(weights, tokens, tokens)], name, path)
        said = capfd.readouterr().err
        assert path.stat().st_size > 0
        assert said.count("\n") == said.count("install Noto Sans CJK SC") == told


def test_drawing_hears_only_errors_of_fonts(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    fonts = logging.getLogger("matplotlib.font_manager")
    fonts.setLevel(logging.NOTSET)
    figures.alignment_figure(
        [figures.Alignment(np.ones((1, 1)), ["a"], ["a"])], "a", tmp_path / "a.png"
    )
    assert not fonts.isEnabledFor(logging.WARNING)
