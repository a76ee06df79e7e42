"""Questions in the JSON of SQuAD (Rajpurkar et al. 2016): `data`, `paragraphs`, `qas`.

A row is a question: `id`, `title`, `context`, `question`, `answers` (a list of `text` and
`answer_start`), and `is_impossible` where the file has it (SQuAD 2.0). The row's line is that of
the question's object.
"""

from collections.abc import Sequence

from nlpkit.contracts.reader import Counts, Rows, TextFile
from nlpkit.data.lines import kind_of
from nlpkit.data.nested import ObjectWithLine
from nlpkit.data.readers import json
from nlpkit.errors import DataError

ENDINGS = (".squad.json", ".squad")
DOCUMENTS = ""


def rows(file: TextFile, columns: Sequence[str], counts: Counts) -> Rows:
    """Yield the questions; raise `DataError` if the file is not in this form."""
    content = json.read(file, counts)
    if not isinstance(content, ObjectWithLine):
        raise DataError(f"{file.name}:1: {kind_of(content)}, not an object with data")
    for article in _list(file, content, "data"):
        for paragraph in _list(file, article, "paragraphs"):
            for question in _list(file, paragraph, "qas"):
                title = {"title": article["title"]} if "title" in article else {}
                context = {"context": paragraph["context"]} if "context" in paragraph else {}
                yield question.line, question.wrong or {**title, **context, **question}


def _list(file: TextFile, entry: ObjectWithLine, key: str) -> list[ObjectWithLine]:
    if entry.wrong:
        raise DataError(f"{file.name}:{entry.line}: {entry.wrong.what}")
    value = entry.get(key)
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        what = "no" if key not in entry else "no list of objects in"
        raise DataError(
            f'{file.name}:{entry.line}: {what} "{key}"; SQuAD\'s form is data, paragraphs, qas'
        )
    return value
