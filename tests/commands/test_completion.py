"""Completion in shells: what is offered where, quickly and without a word on stderr."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from nlpkit import cli, registry
from nlpkit.commands import _completion
from nlpkit.config import FrozenConfig
from nlpkit.recipe import packaged, sections
from nlpkit.train import settings as train_settings


def ask(*words, shell="bash"):
    """Return the answer to the words of a line, the last of which is at the cursor."""
    asked = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    found = _completion.complete(asked | {"_NLPKIT_COMPLETE": f"complete_{shell}"})
    return found.splitlines()


def process(*words, shell="bash"):
    """Return what the shell's script would get."""
    asked = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    return subprocess.run(
        [sys.executable, "-m", "nlpkit"],
        env={**os.environ, **asked, "_NLPKIT_COMPLETE": f"complete_{shell}"},
        capture_output=True,
        text=True,
        encoding="utf-8",
    )


def keys(config: type[BaseModel], before: str) -> set[str]:
    """The settings of a part; a section within it ends in a dot."""
    found = set()
    for name, field in config.model_fields.items():
        inside = [each for each in get_args(field.annotation) if isinstance(each, type)]
        section = any(issubclass(each, FrozenConfig) for each in inside)
        found.add(f"{before}.{name}" + ("." if section else "="))
    return found


def test_completion_offers_verbs():
    assert sorted(ask("nlpkit", "")) == registry.names("commands")  # groups come last
    assert ask("nlpkit", "p") == ["plan", "pretrain"]
    assert ask("nlpkit", "tokenizer", "") == ["train", "show"]
    assert ask("nlpkit", "data", "") == ["contains"]
    assert "--install-completion" in ask("nlpkit", "--")


def test_completion_offers_the_options_of_a_verb():
    assert ask("nlpkit", "pretrain", "cpm_ant", "--d") == ["--device", "--dry-run"]
    assert ask("nlpkit", "plan", "--he") == ["--help"]
    assert ask("nlpkit", "plan", "--device", "c") == ["cpu", "cuda"]
    assert ask("nlpkit", "tokenizer", "train", "--ou") == ["--out"]


@pytest.mark.parametrize("verb", ["pretrain", "finetune", "plan", "selftest", "tokenizer train"])
def test_completion_offers_packaged_recipes(verb):
    assert ask("nlpkit", *verb.split(), "") == list(packaged())
    assert ask("nlpkit", *verb.split(), "-q", "cpm_ant_nl") == ["cpm_ant_nlg", "cpm_ant_nlu"]
    # The recipe is there already; and what is no recipe is left to the shell, as files are.
    assert ask("nlpkit", *verb.split(), "cpm_ant", "") == []
    assert ask("nlpkit", *verb.split(), "my/rec") == []


def test_completion_offers_what_recipes_can_print():
    assert ask("nlpkit", "recipes", "") == [*packaged(), "schema", "parts"]


def test_completion_offers_settings():
    parts = "train.optimizer", "train.schedule"
    own = keys(train_settings.Config, "train") - {f"{part}=" for part in parts}
    own |= {f"{part}." for part in parts}
    own -= {"train.phases="}  # no setting of a recipe
    assert set(ask("nlpkit", "plan", "cpm_ant", "--set", "train.")) == own
    assert ask("nlpkit", "plan", "--set", "train.st") == ["train.steps="]
    top = ask("nlpkit", "plan", "--set", "")
    assert {"name=", "seed=", "model.", "train.", "objective."} <= set(top)
    assert ask("nlpkit", "plan", "--set", "nothing.") == []
    assert "train.lr=" in ask("nlpkit", "pretrain", "cpm_ant", "--grid", "train.l")


def test_completion_offers_the_settings_of_the_recipes_own_parts(tmp_path, monkeypatch):
    def of(name):
        own = {f"objective.{each}=" for each in sections.Objective.own()}
        return own | keys(registry.load("objectives", name).Config, "objective")

    monkeypatch.chdir(tmp_path)
    Path("r.yaml").write_text("objective: {name: clm}\nmodel: {family: gpt}\n")
    assert set(ask("nlpkit", "plan", "r.yaml", "--set", "objective.")) == of("clm")
    assert set(ask("nlpkit", "pretrain", "cpm_ant", "--set", "objective.")) == of("cpm_ant")
    # Without RECIPE that of the verb: finetune's is cpm_ant_nlg.
    assert set(ask("nlpkit", "finetune", "--set", "objective.")) == of("cpm_ant_nlg")
    # --set counts, too; and what stands before the option.
    other = ("--set", "objective.name=similarity", "--set", "objective.")
    assert set(ask("nlpkit", "plan", "r.yaml", *other)) == of("similarity")
    found = set(ask("nlpkit", "plan", "r.yaml", "-q", "--set", "model."))
    # A model's attention is that of the section attention.
    own = keys(registry.load("models", "gpt").Config, "model")
    own -= {"model.attention.", "model.source_vocab_size="}  # decided by the rest of a recipe
    assert found == own | {"model.family=", "model.size=", "model.depth="}


@pytest.mark.parametrize("text", [None, "", "a: [", "- 1\n", "objective: {name: no}\n", "\0"])
def test_completion_of_a_broken_recipe_offers_what_all_recipes_have(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path("r.yaml").write_text(text)
    own = [f"objective.{name}=" for name in sections.Objective.own()]
    assert ask("nlpkit", "plan", "r.yaml", "--set", "objective.") == own
    assert "train.steps=" in ask("nlpkit", "plan", "r.yaml", "--set", "train.")


def test_completion_leaves_values_to_the_shell():
    # bash has `=` as a word of its own.
    assert ask("nlpkit", "plan", "--set", "objective.name", "=", "cl") == []
    assert ask("nlpkit", "plan", "--set", "objective.name", "=") == []
    assert ask("nlpkit", "plan", "--set", "train.opt") == ["train.optimizer."]


def test_completion_offers_the_settings_of_the_optimizer():
    config = registry.load("train/optimizers", "muon").Config
    expected = {f"train.optimizer.{name}=" for name in ("name", *config.model_fields)}
    for chosen in ("train.optimizer=muon", "train.optimizer.name=muon"):
        found = ask("nlpkit", "plan", "cpm_ant", "--set", chosen, "--set", "train.optimizer.")
        assert {*found} == expected
    own = ask("nlpkit", "plan", "roberta", "--set", "train.optimizer.")  # adamw
    assert own == ["train.optimizer.name="]


def test_completion_offers_scores():
    assert ask("nlpkit", "score", "") == registry.names("score/metrics")
    assert ask("nlpkit", "score", "bleu,c") == ["bleu,cer", "bleu,chrf"]
    assert ask("nlpkit", "score", "-m", "c") == ["cer", "chrf"]
    assert ask("nlpkit", "score", "chrf", "h", "r", "-m", "bl") == ["bleu"]
    assert ask("nlpkit", "score", "bleu", "") == []
    assert ask("nlpkit", "eval", "run", "--metrics", "accuracy,sp") == ["accuracy,spearman"]


def test_completion_tells_zsh_and_fish_what_an_offer_is():
    (found,) = ask("nlpkit", "plan", "--bat", shell="zsh")
    assert found == "--batch\tprint the first batch instead, one token per line"


@pytest.mark.parametrize(
    "words",
    [
        ("nlpkit", "plan", "cpm_ant", "--set", "train."),
        ("nlpkit", "score", ""),
        *(
            pytest.param(words, marks=pytest.mark.slow)
            for words in (
                ("nlpkit", "plan", "gpt1", "--set", "objective."),
                ("nlpkit", "pretrain", ""),
            )
        ),
    ],
)
def test_completion_does_not_import_torch(words):
    done = process(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
    program = (
        "import os, sys\nfrom nlpkit import cli\ncli._complete()\n"
        "print({'torch', 'transformers'} & set(sys.modules))"
    )
    asked = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **asked, "_NLPKIT_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.endswith("set()\n")


@pytest.mark.parametrize(
    "words",
    [
        ("nlpkit", "nothing", ""),
        ("nlpkit", "score", "nothing", "--"),
        ("nlpkit", "plan", "--nothing", "--set", "=.="),
        *(
            pytest.param(words, marks=pytest.mark.slow)
            for words in (
                ("nlpkit", "tokenizer", "nothing", ""),
                ("nlpkit", "plan", "--set", "train.steps.more.", ""),
                ("",),
            )
        ),
    ],
)
def test_completion_of_nonsense_is_silent_and_gives_0(words):
    done = process(*words, shell="fish")
    assert (done.returncode, done.stderr) == (0, "")


def test_completion_without_its_variables_is_silent():
    env = {**os.environ, "_NLPKIT_COMPLETE": "complete_bash"}
    done = subprocess.run([sys.executable, "-m", "nlpkit", "plan"], env=env, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


# The scripts


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home directory, and a folder with the command."""
    monkeypatch.setenv("HOME", str(tmp_path))
    program = tmp_path / "bin/nlpkit"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m nlpkit "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(Path(cli.__file__).parents[1]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def offered(shell, program):
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    done = subprocess.run([shell, "-c", program], capture_output=True, text=True, encoding="utf-8")
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("nlpkit pretrain gpt1_ch", ["gpt1_choice"]),
        ("nlpkit plan --set train.st", ["train.steps=", "nospace"]),
        ("nlpkit plan --set objective.name = cl", []),
        pytest.param("nlpkit pretr", ["pretrain"], marks=pytest.mark.slow),
        pytest.param("nlpkit plan my", [], marks=pytest.mark.slow),
    ],
)
def test_completion_in_bash(words, answer, home, monkeypatch, capsys):
    monkeypatch.setenv("SHELL", "/bin/bash")
    assert cli.run(["--show-completion"]) == 0
    script = capsys.readouterr().out
    # As readline calls it; compopt works in a completion only, so that it is put down here.
    call = (
        "compopt() { opened=$2; }\n"
        f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n"
        '_nlpkit_completion nlpkit; printf "%s\\n" "${COMPREPLY[@]}" $opened\n'
    )
    assert [line for line in offered("bash", script + call) if line] == answer
    (declared,) = offered("bash", script + "complete -p nlpkit")
    assert declared == "complete -o default -F _nlpkit_completion nlpkit"


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("nlpkit pretr", ["pretrain"]),
        ("nlpkit plan --set train.st", ["train.steps="]),
        ("nlpkit plan my", ["my.yaml"]),
    ],
)  # fmt: skip
def test_completion_in_fish(line, answer, home, monkeypatch, capsys):
    Path("my.yaml").write_text("name: my\n")
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert cli.run(["--show-completion"]) == 0
    script = capsys.readouterr().out
    found = offered("fish", f"{script}complete -C '{line}'")
    assert [each.partition("\t")[0] for each in found] == answer


def test_completion_script_of_zsh_is_zsh(home, monkeypatch, capsys):
    monkeypatch.setenv("SHELL", "zsh")
    assert cli.run(["--show-completion"]) == 0
    script = capsys.readouterr().out
    assert script.startswith("#compdef nlpkit\n")
    # _describe and _files are zsh's; what they are given is what would be offered.
    call = (
        'compdef() { }; _files() { print files }\n_describe() { print -l "${(@P)2}" "$@[3,-1]" }\n'
        "words=(nlpkit plan --set train.st); CURRENT=4; _nlpkit\n"
        "words=(nlpkit pretrain gpt1_ch); CURRENT=3; _nlpkit\nwords=(nlpkit plan my); _nlpkit\n"
    )
    found = offered("zsh", f"compdef() {{ }}\n{script}\n{call}")
    assert found[0].startswith("train.steps=:optimizer steps")
    assert [line.partition(":")[0] for line in found[1:]] == ["-S", "", "gpt1_choice", "files"]


@pytest.mark.parametrize(
    ("shell", "place", "settings"),
    [
        ("bash", ".bash_completions/nlpkit.sh", ".bashrc"),
        ("zsh", ".zfunc/_nlpkit", ".zshrc"),
        ("fish", ".config/fish/completions/nlpkit.fish", None),
    ],
)
def test_completion_is_installed_once(shell, place, settings, home, monkeypatch, capsys):
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    assert cli.run(["--show-completion"]) == 0
    script = capsys.readouterr().out
    if settings:
        Path(settings).write_bytes(b"alias l=ls  # \xe9, no UTF-8\n")
    for _ in range(2):
        assert cli.run(["--install-completion"]) == 0
        out, err = capsys.readouterr()
        assert (out, err) == (f"{home / place}\n", "completion starts with the next shell\n")
    assert Path(place).read_text() == script
    if settings:
        first, *added = Path(settings).read_bytes().split(b"\n\n")
        assert first == b"alias l=ls  # \xe9, no UTF-8"
        assert len(added) == 1
    if settings and shell == "bash":
        program = ". ./.bashrc; complete -p nlpkit"
        assert offered("bash", program) == ["complete -o default -F _nlpkit_completion nlpkit"]


def test_completion_for_another_shell_gives_2(home, monkeypatch, capsys):
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert cli.run(["--install-completion"]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == (
        "",
        "nlpkit: $SHELL is 'tcsh'; completion is for bash, zsh, fish: SHELL=bash nlpkit ...\n",
    )
