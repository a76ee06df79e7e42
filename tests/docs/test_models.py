"""The pages under Models: every family has one, all have one form, and what they run exists."""

import re
from pathlib import Path

import pytest
import yaml

from nlpkit import cli, recipe, registry

ROOT = Path(__file__).resolve().parents[2]
_NAV = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
(_MODELS,) = (part["Models"] for part in yaml.safe_load(_NAV) if "Models" in part)
PAGES = [ROOT / "docs" / name for page in _MODELS for name in page.values()]
TEXTS = {page.stem: page.read_text("utf-8") for page in PAGES}
FORM = [
    "Run it", "What is trained", "What differs from the paper", "In transformers", "Figures",
    "Read on",
]  # fmt: skip
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
# What stands on the pages for a recipe of the reader.
OWN = {"NAME", "RECIPE"}


def test_every_family_is_named_by_a_page() -> None:
    together = "\n".join(TEXTS.values())
    missing = [
        name
        for name in registry.names("models")
        if not re.search(rf"family: {name}\b", together) and f"`{name}`" not in together
    ]
    assert missing == []


def test_every_packaged_recipe_is_run_on_a_page() -> None:
    named = {word for text in TEXTS.values() for word in re.findall(r"[\w/.]+", text)}
    packaged = {name for name in recipe.packaged() if "/" not in name}
    assert packaged - named == {"babylm_zh"}  # on docs/babylm.md


@pytest.mark.parametrize("page", TEXTS)
def test_page_has_the_form_of_all_and_is_short(page: str) -> None:
    text = TEXTS[page]
    headings = re.findall(r"^## (.*)", text, re.MULTILINE)
    assert [each for each in headings if each in FORM] == FORM
    assert headings[0] == "Run it"
    assert headings[-1] == "Read on"
    lines = BLOCK.sub("", text).splitlines()
    prose = [line for line in lines if line.strip() and not line.startswith("|")]
    assert len(prose) <= 60
    above = text.partition("\n## Run it")[0]
    assert re.search(r"\b(19|20)\d\d\b", above)  # the paper
    # A picture, a formula, or an example.
    assert re.search(r"^(!\[|\$\$|```)", above, re.MULTILINE)


@pytest.mark.parametrize("page", TEXTS)
def test_recipes_of_the_page_exist(page: str) -> None:
    run = re.findall(r"nlpkit (?:pretrain|finetune|plan) ([\w/.]+)", TEXTS[page])
    assert run
    assert {*run} - OWN <= {*recipe.packaged()}


@pytest.mark.parametrize("page", TEXTS)
def test_command_prints_what_the_page_shows(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(
        r"^```console\n\$ (nlpkit plan [^\n]*)\n(.*?)^```$", TEXTS[page], re.M | re.S
    )
    assert blocks or page == "vit"  # which shows a training
    for command, shown in blocks:
        assert cli.run([*command.split()[1:], "-q"]) == 0
        printed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
        lines = [" ".join(line.split()) for line in shown.splitlines() if line != "…"]
        assert lines
        assert [line for line in lines if line not in printed] == []
