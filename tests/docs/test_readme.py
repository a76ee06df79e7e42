"""What the README and the pages that it begins say is so: commands run, tables are the code's."""

import contextlib
import gzip
import io
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from nlpkit import cli, recipe, registry
from nlpkit.models import families
from tests import _processes, _server

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CHINESE = (ROOT / "README.zh.md").read_text(encoding="utf-8")
PARTS, COMMANDS, TUNING = (
    (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
    for name in ("parts", "commands", "finetuning")
)
COMMANDS_ZH, TUNING_ZH = (
    (ROOT / f"docs/zh/{name}.md").read_text(encoding="utf-8") for name in ("commands", "finetuning")
)
_LINES = [
    line.removeprefix("$ ")
    for block in re.findall(r"```console\n(.*?)```", COMMANDS + README + TUNING, re.DOTALL)
    for line in block.splitlines()
    if line.startswith(("$ nlpkit", "$ printf", "$ cat", "$ echo"))
]
_CONSOLE = [*dict.fromkeys(_LINES)]  # a line that two pages have runs once


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with the text files that the README names."""
    place = tmp_path_factory.mktemp("user")
    (place / "my/texts").mkdir(parents=True)
    lines = [
        f"春天第{n}天，花开了，鸟儿在树上唱歌，孩子们在草地上放风筝，很高兴。" for n in range(400)
    ]
    (place / "my/texts/a.txt.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    line = '{"text": "夏天的夜里星星很亮，我们坐在院子里听奶奶讲故事，风吹过来很凉快。"}\n'
    (place / "more.jsonl").write_text(line * 20, encoding="utf-8")
    return place


@pytest.fixture(scope="module")
def pretrained(folder: Path) -> None:
    """A small `runs/cpm_ant` in the user's folder, where `make pretrain` has put the real one."""
    sets = ["train.steps=2", "train.eval_every=null",
            "train.tokens_per_step=1024", "data.valid=[]", "model.hidden_size=32",
            "model.num_layers=1", "model.num_heads=2", "model.intermediate_size=32"]  # fmt: skip
    words = [word for each in sets for word in ("--set", each)]
    cache = {"NLPKIT_CACHE": str(folder / "cache")}
    done = _processes.command("pretrain", "cpm_ant", *words, cwd=folder, env=cache)
    assert done.returncode == 0, done.stderr


def _shortened(line: str) -> str:
    """Return a command that works on a pretrained checkpoint, with less to do."""
    if "nlpkit finetune" in line:
        few = "--set train.steps=2 --set train.eval_every=null"
        return f"{line} {few} --set data.valid_fraction=0.02 --set data.valid=[]"
    return re.sub(r"nlpkit (eval|generate) [^|]*[^| ]", r"\g<0> --max-new-tokens 2", line)


_TUNED = re.compile(r"nlpkit (finetune|eval|generate|convert)|cpm_ant_nl[gu]")


@pytest.mark.parametrize("line", _CONSOLE)
def test_readme_command_runs(folder: Path, line: str, request: pytest.FixtureRequest) -> None:
    if _TUNED.search(line):
        request.getfixturevalue("pretrained")
        line = _shortened(line)
    if "pretrain" in line and "--dry-run" not in line:
        line += " --dry-run"  # the training itself: test_cli_pretrain
    elif "plan" in line and "--" not in line:
        line += " --no-probe"
    cache = {"NLPKIT_CACHE": str(folder / "cache")}
    simple = re.fullmatch(r"(?:echo '([^']*)' \| )?nlpkit ([^|<>*$#]*)", line)
    if simple:  # what a shell would do with it needs no proof
        stdin, words = simple[1] or "", shlex.split(simple[2])
        result = _processes.command(*words, cwd=folder, env=cache, stdin=f"{stdin}\n")
    else:
        shell = f"{_server.function()}set -o pipefail; {line}"
        result = subprocess.run(
            ["bash", "-c", shell],
            cwd=folder, env=os.environ | cache, capture_output=True, text=True, check=False,
        )  # fmt: skip
    # 141: what `| head` does to the one that writes
    assert result.returncode in ((0, 141) if "head" in line else (0,)), result.stderr
    assert "Traceback" not in result.stderr


@pytest.fixture(scope="module")
def parts() -> str:
    """What `nlpkit recipes parts` prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert cli.run(["recipes", "parts"]) == 0
    return printed.getvalue()


def test_table_of_objectives_and_families_is_what_the_command_prints(parts: str) -> None:
    printed = "\n\n".join(parts.split("\n\n")[:2])
    (table,) = re.findall(r"<!-- families.*? -->\n(.*?)\n<!-- /families -->", PARTS, re.DOTALL)
    assert table.split() == printed.split()  # the page has shorter lines
    # An objective that trains nothing would be of no use.
    assert all("yes" in row for row in table.partition("\n\n")[0].splitlines()[2:])


def _groups(text: str) -> list[tuple[list[str], list[str]]]:
    """Return the families and objectives of each row of the README's table."""
    table = text.partition("| `model.family` |")[2].partition("\n\n")[0]
    cells = [row.split("|")[2:4] for row in table.splitlines()[2:]]
    return [(re.findall("`(.+?)`", names), re.findall("`(.+?)`", of)) for names, of in cells]


@pytest.mark.parametrize("text", [README, CHINESE], ids=["en", "zh"])
def test_readme_names_every_family_once_beside_objectives_that_train_it(
    text: str, parts: str
) -> None:
    named = sorted(name for names, _ in _groups(text) for name in names)
    assert named == registry.names("models")
    assert f"[{len(named)} " in text.partition("\n## ")[0]
    rows = [
        [cell.strip(" `") for cell in row.split("|")[1:-1]]
        for row in parts.partition("\n\n")[0].splitlines()
    ]
    trains = {
        (row[0], name)
        for row in rows[2:]
        for name, cell in zip(rows[0], row, strict=True)
        if "yes" in cell
    }
    for names, objectives in _groups(text):
        assert all(any((of, name) in trains for of in objectives) for name in names)
        assert all(any((of, name) in trains for name in names) for of in objectives)


def test_readme_is_a_screen_and_a_half() -> None:
    assert max(len(text.splitlines()) for text in (README, CHINESE)) <= 150


def test_table_of_attention_kinds_is_what_the_command_prints(parts: str) -> None:
    printed = parts.partition("Attention, kind by kind:\n\n")[2]
    text = (ROOT / "docs/attention.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"<!-- kinds.*? -->\n(.*?)\n<!-- /kinds -->", text, re.DOTALL)
    linked = (
        r"\[(`(\w+)`)\]\(gallery/masks\.md#\2\)<br><img src=\"gallery/masks/\2_small\.svg\" [^>]*>"
    )
    assert re.sub(linked, r"\1", table) == printed.rstrip("\n")
    assert len(re.findall(linked, table)) == len(registry.names("attention/kinds"))
    rows = [[cell.strip() for cell in row[1:-1].split("|")] for row in table.splitlines()[2:]]
    assert all(cell for row in rows for cell in row)


@pytest.mark.parametrize("what", ["attention/backends", "tokenizers", "train/optimizers"])
def test_lists_of_parts_are_the_codes(what: str) -> None:
    # What is said of one in brackets is not part of the list.
    plain = re.sub(r"` \([^)]*\)", "`", " ".join(PARTS.split()))
    assert ", ".join(f"`{name}`" for name in registry.names(what)) in plain


def test_every_packaged_recipe_loads_and_says_what_it_takes() -> None:
    for name, path in recipe.packaged().items():
        recipe.load(name)
        first, second = path.read_text(encoding="utf-8").splitlines()[:2]
        assert first.startswith("# ")
        assert second.startswith("# takes: ")


# `nlpkit` on PyPI is another project; ours is `nlpkit-lm`.
_FROM_INDEX = re.compile(r"\b(?:pip3?|pipx|uvx?)\b.*[\s'\"]nlpkit(?![\w-])|nlpkit\[[a-z]")


def test_nothing_installs_the_other_nlpkit_from_an_index() -> None:
    for line in ("pip install -U nlpkit", "uvx nlpkit", "pip install 'nlpkit[arrow]'"):
        assert _FROM_INDEX.search(line)
    folders = [ROOT / name for name in ("bench", "docs", "nlpkit", "recipes", "tests", ".ci")]
    files = [file for folder in folders for file in folder.rglob("*")] + list(ROOT.glob("*"))
    for file in files:
        if file.is_file() and file.suffix != ".pyc" and file != Path(__file__):
            text = file.read_text(encoding="utf-8", errors="replace")
            assert not _FROM_INDEX.search(text), file.relative_to(ROOT)
    assert '\nname = "nlpkit-lm"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", [TUNING, TUNING_ZH], ids=["en", "zh"])
def test_default_targets_of_adapters_are_those_that_the_page_names(text: str) -> None:
    found: dict[tuple[str, ...], list[str]] = {}
    for name in registry.names("models"):
        targets = families.load_model(name).LORA_TARGETS
        alike = dict.fromkeys([("c_attn",), ("query_key_value",), ("Wqkv",)], ("q", "k", "v"))
        alike |= dict.fromkeys([("q_proj", "v_proj"), ("q", "v")], ("query", "value"))
        targets = alike.get(targets, targets)  # the first are three in one layer
        found.setdefault(targets, []).append(f"`{name}`")
    assert {*found} == {("query", "value"), ("q", "k", "v"), ("up", "down"), ()}
    (line,) = [" ".join(each.split()) for each in text.split("\n\n") if "`lora.targets`" in each]
    for targets in (("q", "k", "v"), ("up", "down"), ()):
        assert re.search(rf"[^`] ?{', '.join(found[targets])}[^,]", line), targets


@pytest.mark.parametrize("name", ["transformer", "transformer_two_tokenizers"])
def test_page_of_translation_has_the_figures_of_the_recipes(name: str) -> None:
    about = recipe.packaged()[name].read_text(encoding="utf-8")
    nats, bleu = re.findall(r"Held out: ([\d.]+) nats a token, BLEU ([\d.]+)", about)[0]
    page = (ROOT / "docs/translation.md").read_text(encoding="utf-8")
    assert f"{nats} nats a token held out, BLEU {bleu}" in " ".join(page.split())


@pytest.mark.parametrize(
    "page",
    ["README.md", "README.zh.md", "docs/parts.md", "docs/commands.md", "docs/finetuning.md",
     "docs/zh/commands.md", "docs/zh/finetuning.md"],
)  # fmt: skip
def test_files_that_the_page_links_to_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert ((ROOT / page).parent / target).exists(), target


@pytest.mark.parametrize(
    ("english", "chinese"), [(README, CHINESE), (COMMANDS, COMMANDS_ZH), (TUNING, TUNING_ZH)],
    ids=["readme", "commands", "finetuning"],
)  # fmt: skip
def test_chinese_page_has_the_same_blocks_and_verbs(english: str, chinese: str) -> None:
    def commands(text: str) -> list[str]:
        blocks = re.findall(r"```(?:console|python|text)?\n(.*?)```", text, re.DOTALL)
        blocks = [block for block in blocks if "# creates" not in block and "# 建立" not in block]
        return blocks + re.findall(r"^\| (`nlpkit .*?) \|", text, re.MULTILINE)

    assert commands(chinese) == commands(english)


@pytest.mark.parametrize("text", [README, CHINESE, COMMANDS, COMMANDS_ZH])
def test_every_verb_is_named(text: str) -> None:
    assert all(f"`nlpkit {verb}" in text for verb in registry.names("commands"))
