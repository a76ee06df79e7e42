"""Checkpoints of two tokenizers with unequal sizes: saved in each way, and opened again."""

import json
from pathlib import Path

import pytest
import transformers

from nlpkit import cli
from nlpkit.errors import FileError
from nlpkit.runs.open_checkpoint import open_checkpoint
from nlpkit.tokenizers import bpe
from tests import _tiny
from tests.runs.test_two_tokenizers import RECURRENT, SIDES, TEXTS, TRANSFORMER, _recipe


def _in_path(folder: Path) -> str:
    """Return larger targets with GPT-2's files, whose vocabulary has no padding."""
    made = bpe.Tokenizer.train(["abcdefgh"], bpe.Config(vocab_size=258))
    words = [made.token(number) for number in range(258) if number not in made.special_ids]
    (folder / "gpt2").mkdir()
    ids = {word: number for number, word in enumerate([*words, "<|endoftext|>"])}
    (folder / "gpt2" / "vocab.json").write_text(json.dumps(ids), "utf-8")
    (folder / "gpt2" / "merges.txt").write_text("#version: 0.2\n", "utf-8")
    source = "{kind: wordpiece, vocab_size: 60, min_frequency: 1}"
    return f"{{source: {source}, target: {{path: {folder}/gpt2}}}}"


UNEQUAL = {
    "larger sources": SIDES,
    "larger targets": """{source: {kind: wordpiece, vocab_size: 60, min_frequency: 1},
  target: {kind: unigram, vocab_size: 300}}""",
    "targets without padding": "",  # `_in_path`
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "sides"),
    [
        *(
            (TRANSFORMER, s)
            for s in ("larger targets", "larger sources", "targets without padding")
        ),
        *((RECURRENT, sides) for sides in UNEQUAL),
    ],
)
def test_checkpoints_of_all_kinds_have_the_end_token_of_each_side(
    tmp_path: Path, model: str, sides: str
) -> None:
    path = _recipe(tmp_path, model, UNEQUAL[sides] or _in_path(tmp_path))
    made = {"run": _tiny.pretrain(path, tmp_path / "run", "train.average.name=ema")}
    text = path.read_text("utf-8")
    before, _, rest = text.partition("model:")
    rest = rest[rest.index("data:") :]
    for name, lines in (("tuned", ""), ("adapters", "lora: {rank: 2}\n")):
        if model == TRANSFORMER or not lines:
            path.write_text(f"{before}init_from: {tmp_path}/run\n{lines}{rest}", "utf-8")
            made[name] = _tiny.pretrain(path, tmp_path / name)
    run = tmp_path / "run" / "checkpoints"
    for name, options in {
        "sharded": [f"{run}/step-00000008", "--max-shard-size", "20KB", "--precision", "bf16"],
        "mean": [f"{run}/step-00000004", f"{run}/step-00000008", "--average"],
        "merged": [str(made.get("adapters", made["tuned"]))],
    }.items():
        assert cli.run(["convert", *options, str(tmp_path / name), "--quiet"]) == 0
        made[name] = tmp_path / name
    for place in made.values():
        _check_sides(place)


def _check_sides(place: Path) -> None:
    opened = open_checkpoint(place, device="cpu")
    sides = {"source": opened.tokenizer.source, "target": opened.tokenizer.target}
    assert sides["source"].vocab_size != sides["target"].vocab_size
    for name, ours in sides.items():
        theirs = transformers.AutoTokenizer.from_pretrained(place / f"{name}_tokenizer")
        assert (theirs.eos_token, theirs.eos_token_id) == ("</s>", ours.special_id("</s>"))
        assert {*theirs.all_special_ids} <= {*ours.special_ids}
        for text in (*TEXTS, "abc", "hgfedcb"):
            ids = theirs(text).input_ids
            assert ids == [*ours.encode(text), ours.special_id("</s>")]
            assert theirs.decode(ids, skip_special_tokens=True) == ours.decode(ids)
    if opened.part.family == "transformer" and not (place / "adapter_config.json").is_file():
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(place)
        assert {model.generation_config.pad_token_id, model.generation_config.eos_token_id} <= {
            *sides["target"].special_ids
        }


def test_what_cannot_be_saved_is_found_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise FileError("cannot be saved")

    monkeypatch.setattr(bpe.Tokenizer, "save", refuse)
    path = _recipe(tmp_path, tokenizer=_in_path(tmp_path))
    with pytest.raises(FileError, match="cannot be saved"):
        _tiny.pretrain(path, tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
