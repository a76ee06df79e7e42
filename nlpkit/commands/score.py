"""Score the lines of a file (bleu, rouge, accuracy, ...), or rank documents (bm25, tfidf).

`nlpkit score` lists them. This module and its imports must not import typer, which is slow.
"""

from nlpkit.errors import UsageError
from nlpkit.score import command


def main(arguments: list[str]) -> None:
    """Run `nlpkit score` with these arguments."""
    try:
        command.run(arguments)
    except MemoryError as error:
        raise UsageError("out of memory: all lines of the files must fit into it") from error
