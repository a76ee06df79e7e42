"""Print how fast CPM-Ant text becomes ids, ours beside transformers', on one core.

    RAYON_NUM_THREADS=1 OMP_NUM_THREADS=1 python bench/tokenizer.py [--data DIR] [--rounds N]

DIR holds `zh_lm/` (vocab_ant.txt, clue_small.txt, wiki_cmrc_contexts.jsonl). Rounds are
interleaved, in seconds of this process, so that a busy machine disturbs less; the table gives the
best and the median of each. "first pass" starts with nothing
remembered, "again" with the words of an earlier pass.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import rjieba
from transformers import CpmAntTokenizer

from nlpkit.tokenizers.cpm_ant import Tokenizer


def read(folder: Path) -> list[str]:
    """Return the lines of prose and the encyclopaedia's paragraphs."""
    prose = (folder / "clue_small.txt").read_text(encoding="utf-8").removesuffix("\n")
    with open(folder / "wiki_cmrc_contexts.jsonl", encoding="utf-8") as lines:
        return [*prose.split("\n"), *(json.loads(line)["text"] for line in lines)]


def ways(
    folder: Path, texts: list[str], rounds: int
) -> dict[str, Callable[[], list[list[int]] | None]]:
    """Return what is timed, by name."""
    file = folder / "vocab_ant.txt"
    theirs = CpmAntTokenizer(str(file))
    ours = Tokenizer.load(file)
    fresh = [Tokenizer.load(file) for _ in range(rounds)]

    def called() -> list[list[int]]:
        return [theirs(text)["input_ids"] for text in texts]

    def bare() -> list[list[int]]:
        return [theirs.convert_tokens_to_ids(theirs._tokenize(text)) for text in texts]

    def cut() -> None:
        for text in texts:
            rjieba.cut(text, False)

    return {
        "transformers, tokenizer(text)": called,
        "transformers, _tokenize + convert": bare,
        "nlpkit, first pass": lambda: fresh.pop().encode_batch(texts),
        "nlpkit, again": lambda: ours.encode_batch(texts),
        "rjieba.cut alone": cut,
    }


def main() -> None:
    """Time every way `--rounds` times and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    default = Path(__file__).parents[2] / "shared" / "data"
    parser.add_argument("--data", type=Path, default=default)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    folder = options.data / "zh_lm"
    texts = read(folder)
    timed = ways(folder, texts, options.rounds + 1)
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    ids = {}
    for _ in range(options.rounds + 1):
        for name, way in timed.items():
            start = time.process_time()
            ids[name] = way()
            seconds[name].append(time.process_time() - start)
    bare = ids["transformers, _tokenize + convert"]
    same = bare == ids["nlpkit, first pass"] == ids["nlpkit, again"]
    characters = sum(map(len, texts))
    # The first round warms up what all of them share.
    best = {name: min(found[1:]) for name, found in seconds.items()}
    called, bare_best = list(best.values())[:2]
    print(f"{len(texts)} texts, {characters} characters, one core, {options.rounds} rounds")
    print(f"ids equal to transformers' _tokenize: {same}")
    print(f"{'':34} {'best s':>7} {'median':>7} {'Mchar/s':>8} {'x called':>9} {'x bare':>7}")
    for name, found in best.items():
        print(
            f"{name:34} {found:7.3f} {statistics.median(seconds[name][1:]):7.3f}"
            f" {characters / found / 1e6:8.2f} {called / found:9.2f} {bare_best / found:7.2f}"
        )


if __name__ == "__main__":
    main()
