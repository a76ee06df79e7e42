"""Score the lines of a file (bleu, rouge, accuracy, ...), or rank documents (bm25, tfidf).

`nlpkit score` lists them. Light: neither this nor what it imports may import typer.
"""

from nlpkit.errors import UsageError
from nlpkit.score import command


def main(arguments: list[str]) -> None:
    """Run `nlpkit score` with these arguments."""
    try:
        command.run(arguments)
    except MemoryError as error:
        raise UsageError("out of memory: all lines of the files are held in it") from error
