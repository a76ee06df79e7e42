"""Tokens per second of tokenising 20 MB of Chinese-looking text, for 1, 2 … workers, interleaved.

    python bench/store.py [MEGABYTES] [WORKERS...]

The tokenizer is CPM-Ant's, trained on the same text. Best of three rounds; also the second start.
"""

import random
import sys
import tempfile
import time
from pathlib import Path

from nlpkit.data import store
from nlpkit.data.files import find_inputs as resolve
from nlpkit.data.settings import Config
from nlpkit.tokenizers import cpm_ant

ROUNDS = 3


def write_text(path: Path, size: int) -> None:
    """Write lines of words that are drawn with Zipf's weights from 20,000 random ones."""
    rng = random.Random(1)
    words = [
        "".join(chr(rng.randrange(0x4E00, 0x6000)) for _ in range(rng.randint(1, 3)))
        for _ in range(20_000)
    ]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    with open(path, "w", encoding="utf-8") as file:
        while file.tell() < size:
            file.write("".join(rng.choices(words, weights, k=200)) + "\n")


def build_once(path: Path, workers: int, tokenizer: cpm_ant.Tokenizer, cache: Path) -> str:
    """Return a line: seconds and tokens per second of a build, and of opening it again."""
    config = Config(train=[str(path)], workers=workers)
    files = resolve(config, None, cache)[0][0].files
    times = []
    for _ in range(2):
        start = time.perf_counter()
        built = store.build(files, config, store.Encoding(tokenizer, True), cache_dir=cache)
        times.append(time.perf_counter() - start)
    rate = built.tokens / times[0] / 1e6
    return f"{rate:.2f} M tokens/s ({times[0]:.2f} s), second start {times[1] * 1e3:.0f} ms"


def main() -> None:
    """Print the best of the rounds for each number of workers."""
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    crews = [int(arg) for arg in sys.argv[2:]] or [1, 2]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "text.txt"
        write_text(path, size << 20)
        with open(path, encoding="utf-8") as lines:
            texts = [line for line, _ in zip(lines, range(2000), strict=False)]
        tokenizer = cpm_ant.Tokenizer.train(texts, cpm_ant.Config(vocab_size=8000))
        results: dict[int, list[str]] = {workers: [] for workers in crews}
        for turn in range(ROUNDS):
            for workers in crews:
                cache = Path(folder) / f"cache-{turn}-{workers}"
                results[workers].append(build_once(path, workers, tokenizer, cache))
        for workers, lines_out in results.items():
            best = max(lines_out, key=lambda line: float(line.split()[0]))
            print(f"{workers} workers: {best}")


if __name__ == "__main__":
    main()
