"""Files of an objective in its checkpoints, here of an objective from outside the package."""

from pathlib import Path

from transformers import AutoTokenizer

from nlpkit.runs.convert import convert
from tests import _tiny, _tiny_tasks
from tests.parts.chat import TEMPLATE


def test_file_of_an_objective_is_saved_converted_and_read(tmp_path: Path) -> None:
    path = _tiny.write(tmp_path, documents=40, text=_tiny_tasks.GPT)
    last = _tiny.pretrain(
        path,
        tmp_path / "run",
        "train.steps=1",
        "objective.name=tests.parts.chat",
        "objective.roles=[<|me|>]",
    )
    messages = [{"role": "user", "content": "hello"}]
    theirs = AutoTokenizer.from_pretrained(last)
    assert "<|me|>" in theirs.get_vocab()  # special tokens by the settings of the objective
    assert "<|user|>" not in theirs.get_vocab()
    assert theirs.apply_chat_template(messages, tokenize=False) == "hello\n"
    convert(last, tmp_path / "out")
    file = tmp_path / "out/chat_template.jinja"
    assert file.read_text() == TEMPLATE
    file.write_text("edited")
    convert(tmp_path / "out", tmp_path / "again")
    assert (tmp_path / "again/chat_template.jinja").read_text() == "edited"
