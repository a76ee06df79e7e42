"""docs/gallery is what `python docs/gallery.py` writes; it has every attention kind and recipe."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from nlpkit import recipe, registry
from tests._scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
GALLERY = ROOT / "docs" / "gallery"
KINDS = registry.names("attention/kinds")
RECIPES = [name for name in recipe.packaged() if "/" not in name]


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return load_script("bench/gallery.py")


def _read(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in files}


def test_pages_and_pictures_are_what_the_command_writes(tmp_path: Path) -> None:
    done = _run("docs/gallery.py", "--to", str(tmp_path))
    assert done.returncode == 0, done.stderr
    written, kept = _read(tmp_path), _read(GALLERY)
    changed = [name for name in {*written, *kept} if written.get(name) != kept.get(name)]
    assert not changed, "run `python docs/gallery.py`"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_section_and_a_picture(kind: str) -> None:
    page = (GALLERY / "masks.md").read_text("utf-8")
    assert f"\n## {kind}\n" in page
    assert f"](masks/{kind}.svg)" in page
    root = ElementTree.parse(GALLERY / "masks" / f"{kind}.svg").getroot()
    blue = [each for each in root.iter("{http://www.w3.org/2000/svg}path") if each.get("fill")]
    assert blue
    assert all(each.get("d") for each in blue)


def test_every_recipe_is_on_the_page_with_a_curve_if_it_has_a_result() -> None:
    page = (GALLERY / "recipes.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert sorted(row.split("`")[1] for row in rows) == sorted(RECIPES)
    results = json.loads((ROOT / "bench/results/gallery.json").read_text("utf-8"))
    assert results
    for row in rows:
        name = row.split("`")[1]
        assert (f'src="recipes/{name}.svg"' in row) == (name in results)
        assert name not in results or (GALLERY / f"recipes/{name}.svg").exists()
        assert "202" in row or "201" in row or "1997" in row  # its paper


def test_bases_are_trained_before_what_begins_with_them_and_the_quickest_first(
    bench: ModuleType,
) -> None:
    texts = bench.list_recipes()
    assert sorted(texts) == sorted(RECIPES)
    ordered = list(bench.order(["bert", "gpt2_dpo", "lstm_tag"], texts))
    assert ordered == ["lstm_tag", "gpt2", "gpt2_answers", "gpt2_dpo", "bert"]


def test_recipes_that_need_own_text_are_left_out_with_what_begins_with_them(
    bench: ModuleType,
) -> None:
    texts = bench.list_recipes()
    left_out = {name for name in texts if bench.needs_own_text(name, texts)}
    assert {"babylm", "babylm_zh", "gpt1_paper", "gpt1_paper_entail"} <= left_out
    assert not {"gpt1", "gpt1_entail", "cpm_ant_nlg", "transformer_two_tokenizers"} & left_out
    done = _run("bench/gallery.py", "x", "babylm")
    assert done.returncode == 2
    assert "no recipe that trains on what nlpkit ships: babylm" in done.stderr


@pytest.mark.slow
def test_what_is_finished_is_not_trained_again(tmp_path: Path) -> None:
    words = ("bench/gallery.py", str(tmp_path), "lstm_tag", "--steps", "6")
    words += ("--result", str(tmp_path / "result.json"))
    first = _run(*words)
    assert first.returncode == 0, first.stderr
    result = json.loads((tmp_path / "result.json").read_text("utf-8"))["lstm_tag"]
    assert (result["steps"], result["own_steps"]) == (6, 150)
    assert [step for step, _ in result["train"]] == [1, 2, 3, 4, 5, 6]
    assert result["held_out"][-1][0] == 6
    assert result["cpu_minutes"] > 0
    again = _run(*words)
    assert (first.stdout, again.stdout) == ("lstm_tag\n", "")
