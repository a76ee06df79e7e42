"""Every part once through the command line, at the sizes of the shipped recipes (`--smoke-test`).

A recipe is put together from shipped ones: model and tokenizer of one, objective and data of
another. In `make test` one objective, kind of attention and precision; in `make test-all` every
cell of docs/parts.md's table, every kind of attention with every family that takes it, and every
backend, optimizer, tokenizer and precision.
"""

import itertools
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from nlpkit import cli, registry
from nlpkit.commands import _parts

ROOT = Path(__file__).resolve().parents[2]
# The recipe of a family, and that of an objective, where it has another name.
FAMILIES = {"deberta_v2": "deberta", "gpt": "gpt1", "gru": "lstm", "rnn": "lstm", "xlm": "xlm_tlm"}
OBJECTIVES = {
    "blank_infilling": "glm", "chat": "gpt2_chat", "classification": "gpt1_classify",
    "clm": "gpt2", "denoising": "bart", "entailment": "gpt1_entail",
    "generation": "lstm_label", "image_classification": "vit", "mlm": "roberta",
    "multiple_choice": "gpt1_choice", "nsp": "bert", "plm": "xlnet", "prefix_lm": "gpt2",
    "question_answering": "bert_qa", "reorder": "gpt2", "rtd": "electra",
    "scheduled_sampling": "seq2seq", "similarity": "gpt1_similarity", "sop": "albert",
    "span": "spanbert", "span_corruption": "t5", "tagging": "bert_tag", "tlm": "xlm_tlm",
    "wwm": "roberta",
}  # fmt: skip
PREFERENCES = {"dpo": "generation", "dpo_chat": "chat"}  # with what they begin
# The objectives that a kind of attention is tried with; the first that fits is taken.
WITH_KINDS = ("clm", "mlm", "span_corruption", "plm", "cpm_ant", "rtd", "image_classification",
              "blank_infilling")  # fmt: skip
KINDS = {"aft": {"max_length": 512}, "fixed": {"stride": 32, "summary": 8}}  # settings
TRAIN = {"steps": 2, "tokens_per_step": 1024, "lr": 1.0e-3, "schedule": "constant"}


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # where the recipes find their data


def _shipped(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / f"recipes/{name}.yaml").read_text("utf-8"))
    return found


def _write(folder: Path, objective: str, family: str, **sections: Any) -> Path:
    """Write the recipe; `sections` are added, or take the place of those of the family."""
    data = _shipped(OBJECTIVES.get(objective, objective))
    same = data.get("model", {}).get("family") == family
    start = data if same else _shipped(FAMILIES.get(family, family))
    listed = data["objective"] if isinstance(data["objective"], list) else [data["objective"]]
    own = [each for each in listed if each["name"] == objective]
    values = {
        "name": "part",
        "model": start["model"] | {"family": family},
        "data": data["data"],
        "objective": own[0] if own else {"name": objective, "max_length": 128},
        "train": TRAIN,
        **({"tokenizer": start["tokenizer"]} if "tokenizer" in start else {}),
    }
    if objective != "rtd":  # the recipe deberta has a generator
        values["model"].pop("generator_layers", None)
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(values | sections), "utf-8")
    return path


def _write_preferences(folder: Path, objective: str) -> Path:
    """Write a recipe that begins with the run `start` in the folder; `dpo_chat` reads messages."""
    rows = (ROOT / "data/en/prefer/valid.jsonl").read_text("utf-8").splitlines()[:64]
    if objective == "dpo_chat":
        for number, row in enumerate(map(json.loads, rows)):
            asked = {"role": "user", "content": row["prompt"]}
            both = ("chosen", "rejected")
            talks = {n: [asked, {"role": "assistant", "content": row[n]}] for n in both}
            rows[number] = json.dumps(talks)
    (folder / "rows.jsonl").write_text("\n".join(rows) + "\n", "utf-8")
    values = {
        "name": "part",
        "init_from": str(folder / "start"),
        "data": {"train": ["rows.jsonl"], "valid": ["rows.jsonl"]},
        "objective": {"name": objective, "max_length": 128},
        "train": TRAIN,
    }
    path = folder / "tuned.yaml"
    path.write_text(yaml.safe_dump(values), "utf-8")
    return path


def _run(path: Path, *options: str) -> int:
    return cli.run(["pretrain", str(path), "--json", "--device", "cpu", *options])


def _passes(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> None:
    code = _run(path, "--smoke-test", *options)
    printed = capsys.readouterr()
    assert code == 0, printed.err
    assert json.loads(printed.out)["passed"]


def _slow(cases: list[Any], fast: Any = None) -> list[Any]:
    """Mark all cases but one, or all."""
    return [
        case
        if case == fast
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]


def _cells() -> list[tuple[str, str, bool]]:
    """Return objective, family, and whether it needs another setting, of each cell."""
    text = (ROOT / "docs/parts.md").read_text("utf-8")
    (table,) = re.findall(r"<!-- families.*? -->\n(.*?)\n\n", text, re.DOTALL)
    head, _, *rows = ([c.strip(" `") for c in row.split("|")[1:-1]] for row in table.splitlines())
    return [
        (name, family, cell == "(yes)")
        for name, *cells in rows
        for family, cell in zip(head[1:], cells, strict=True)
        if cell
    ]


@cache
def _with_setting() -> dict[str, dict[str, list[str]]]:
    return _parts.collect()["with_other_setting"]


@pytest.mark.parametrize(
    ("objective", "family", "marked"), _slow(_cells(), ("multiple_choice", "bert", False))
)
def test_every_cell_of_the_table_of_objectives_and_families(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], objective: str, family: str, marked: bool
) -> None:
    setting = ["--set", _with_setting()[objective][family][0]] if marked else []
    if objective in PREFERENCES:
        start = _write(tmp_path, PREFERENCES[objective], family)
        assert _run(start, "--out", str(tmp_path / "start"), *setting) == 0
        capsys.readouterr()
        path, setting = _write_preferences(tmp_path, objective), []
    else:
        path = _write(tmp_path, objective, family)
    _passes(path, capsys, *setting)


# The families that take a kind; others may refuse it.
DECODERS = {"gpt", "gpt2", "gpt_neo", "gpt_neox", "llama", "modernbert_decoder"}
ENCODERS = {"albert", "bert", "electra", "longformer", "modernbert", "roberta", "xlm"}
ENCODERS |= {"distilbert"}
CAUSAL = DECODERS | {"modernbert", "roberta", "xlm", "bart", "t5", "transformer"}
CAUSAL |= {"distilbert"}
EITHER = DECODERS | ENCODERS | {"bart", "t5", "transformer"}
TAKEN: dict[str, set[str]] = {
    **dict.fromkeys(["causal", "fixed", "local_window", "relative_bias_causal", "strided"], CAUSAL),
    **dict.fromkeys(["aft", "block_local", "linear", "longformer", "lsh"], EITHER),
    **dict.fromkeys(["disentangled", "memory_compressed", "relative_keys"], EITHER),
    "cosformer": EITHER - {"t5"},
    "hybrid": CAUSAL,
    **dict.fromkeys(["full", "group", "relative", "relative_bias"], DECODERS | ENCODERS),
    "seen_range": {"bert"},
    "prefix": {"gpt2"},
    "cpm_ant": set(),  # its sizes are settings of its model
}
KINDS_AND_FAMILIES = list(
    itertools.product(registry.names("attention/kinds"), registry.names("models"))
)


@pytest.mark.parametrize(("kind", "family"), _slow(KINDS_AND_FAMILIES, ("strided", "gpt2")))
def test_every_kind_of_attention_with_every_family(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, family: str
) -> None:
    attention = {"kind": kind, **KINDS.get(kind, {})}
    for objective in WITH_KINDS:
        path = _write(tmp_path, objective, family, attention=attention)
        if _run(path, "--dry-run") == 0:
            capsys.readouterr()
            _passes(path, capsys)
            return
        refused = capsys.readouterr().err
        assert "Traceback" not in refused
        assert f"{path}:" in refused
    assert family not in TAKEN[kind]


@pytest.mark.parametrize("name", _slow(registry.names("train/optimizers")))
def test_every_optimizer(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    _passes(_write(tmp_path, "clm", "gpt2", train=TRAIN | {"optimizer": name}), capsys)


@pytest.mark.slow
@pytest.mark.parametrize("name", _slow(["auto", "fp32", "bf16"], "bf16"))
def test_every_precision(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    _passes(_write(tmp_path, "mlm", "bert", train=TRAIN | {"precision": name}), capsys)


@pytest.mark.parametrize("name", _slow(registry.names("tokenizers")))
def test_every_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    objective, family = ("cpm_ant", "cpm_ant") if name == "cpm_ant" else ("clm", "gpt2")
    _passes(
        _write(tmp_path, objective, family, tokenizer={"kind": name, "vocab_size": 2000}), capsys
    )


# Backends that do not train on a CPU, with the reason.
ELSEWHERE = {"flash": "CUDA", "varlen": "CUDA", "flex": "no backward pass on CPU"}


@pytest.mark.parametrize("name", _slow(registry.names("attention/backends")))
def test_every_backend(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    kind = "strided" if name == "sparse" else "causal"
    path = _write(tmp_path, "clm", "gpt2", attention={"kind": kind, "backend": name})
    if name in ELSEWHERE:
        assert _run(path, "--smoke-test") == 2
        assert ELSEWHERE[name] in capsys.readouterr().err
    else:
        _passes(path, capsys)
