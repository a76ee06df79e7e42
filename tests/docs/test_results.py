"""Tables that are made from bench/results are those of the files there."""

import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from tests._scripts import load_script

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def results() -> ModuleType:
    return load_script("docs/results.py")


def test_tables_are_those_of_the_results(results: ModuleType) -> None:
    pages = results.write_pages()
    assert {path: (ROOT / path).read_text("utf-8") for path in pages} == pages, (
        "python docs/results.py"
    )


def test_summary_has_the_ratios_of_nlpkit_by_workload(results: ModuleType) -> None:
    rows = json.loads((ROOT / "bench/results/steps.json").read_text("utf-8"))
    *_, last = results.write_summary(rows).splitlines()
    assert last == "| gpt1 pretrain, full rows, 12 x 768 | 1.31 | 0.97 | 1.69 | 1.14 | 0.60, 0.64 |"


def test_page_without_marks_is_refused(results: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"no <!-- table steps\.json -->"):
        results.fill("# Speed\n", "steps.json", "| a |")


def test_every_table_of_the_lab_is_made_from_a_file() -> None:
    by_hand = []
    others = [ROOT / f"docs/{name}.md" for name in ("speedrun", "babylm", "claims", "finetuning")]
    for page in [*sorted((ROOT / "docs/lab").glob("*.md")), *others]:
        text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
        text = re.sub(
            r"<!-- table [^>]*-->(.(?!<!-- table))*?<!-- end of table -->", "", text, flags=re.S
        )
        for found in re.finditer(r"^(.*)\n\n\|.*\n\|-", text, re.M):
            if not found[1].endswith("-->"):
                by_hand.append(f"{page.name}: {found[1]}")
    assert not by_hand, "put them into bench/results/lab; docs/results.py writes them"
