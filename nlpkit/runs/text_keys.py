"""Warns of a `text_key` that no file is asked for: lines of text have no keys, tasks their own."""

from collections.abc import Iterator, Sequence

from nlpkit.contracts.reader import TextFile
from nlpkit.data import formats
from nlpkit.data.files import Input
from nlpkit.data.lines import name_first
from nlpkit.recipe import Resolved


def find_unread(resolved: Resolved, is_task: bool, inputs: Sequence[Input]) -> Iterator[str]:
    """Yield a warning for each `text_key` without effect, with its place in the recipe."""
    data, tokenizer = resolved.recipe.data, resolved.recipe.tokenizer
    sources = [(f"train.{number}", one) for number, one in enumerate(data.train)]
    sources += [(f"valid.{number}", one) for number, one in enumerate(data.valid)]
    if len(sources) != len(inputs):
        return  # stdin is none of the inputs
    asked: dict[str, list[TextFile]] = {} if data.text_key == "text" else {"text_key": []}
    for (place, source), entry in zip(sources, inputs, strict=True):
        key = f"{place}.text_key" if source.text_key else "text_key"
        if source.text_key or key in asked:
            asked.setdefault(key, []).extend(entry.files)
    for key, files in asked.items():
        if is_task and (tokenizer is None or tokenizer.kind is None or key.startswith("valid")):
            why = "on the rows of a task, unless they train a tokenizer of all texts"
        else:
            why = find_keyless(files)
        if why:
            yield resolved.document.locate(f"data.{key}: has no effect {why}")


def find_keyless(files: Sequence[TextFile]) -> str:
    """Return why a `text_key` has no effect on any of these files; empty if it has one."""
    if any(file.format not in (*formats.TEXT_FORMATS, "parallel") for file in files):
        return ""
    if not files:
        return "where every source has its own text_key"
    kinds = ", ".join(dict.fromkeys(file.format for file in files))
    return f"on files of the format {kinds}: {name_first([file.name for file in files])}"
