"""Warns of a `text_key` that no file is asked for: lines of text have no keys, tasks their own."""

from collections.abc import Iterator, Sequence

from nlpkit.contracts.reader import TextFile
from nlpkit.data import formats
from nlpkit.data.files import Input
from nlpkit.data.lines import name_first
from nlpkit.recipe import Resolved


def find_unread(resolved: Resolved, is_task: bool, inputs: Sequence[Input]) -> list[str]:
    """Return a warning for each `text_key` without effect, with its place in the recipe."""
    return [resolved.document.locate(what) for what in _find(resolved, is_task, inputs)]


def _find(resolved: Resolved, is_task: bool, inputs: Sequence[Input]) -> Iterator[str]:
    data, tokenizer = resolved.recipe.data, resolved.recipe.tokenizer
    sources = [("train", *each) for each in enumerate(data.train)]
    sources += [("valid", *each) for each in enumerate(data.valid)]
    trains = tokenizer is not None and tokenizer.path is None
    if is_task and not trains:
        named = [f"{part}.{number}.text_key" for part, number, one in sources if one.text_key]
        for name in [*named, *([] if data.text_key == "text" else ["text_key"])]:
            yield f"data.{name}: has no effect on the rows of a task, if no tokenizer is trained"
    elif len(sources) == len(inputs):  # with stdin there are fewer
        for (part, number, source), entry in zip(sources, inputs, strict=True):
            if source.text_key and not any(map(_has_keys, entry.files)):
                yield f"data.{part}.{number}.text_key: has no effect{_reason(entry.files)}"
        files = [f for (*_, s), e in zip(sources, inputs, strict=True) if not s.text_key
                 for f in e.files]  # fmt: skip
        if data.text_key != "text" and not any(map(_has_keys, files)):
            why = _reason(files) if files else ", since every source has a text_key of its own"
            yield f"data.text_key: has no effect{why}"


def _has_keys(file: TextFile) -> bool:
    return file.format not in (*formats.TEXT_FORMATS, "parallel")


def _reason(files: Sequence[TextFile]) -> str:
    kinds = ", ".join(dict.fromkeys(file.format for file in files))
    return f" on files of the format {kinds}: {name_first([file.name for file in files])}"
