"""Default steps, batch size and learning rate for a model given by its size.

Tokens: 20 for each parameter (Hoffmann et al. 2022, arXiv:2203.15556, sec. 3), but at most 4 epochs
of the text: more repetition is worth less (Muennighoff et al. 2023, arXiv:2305.16264). Tokens of a
step: by the root of all tokens, as the critical batch grows (Zhang et al. 2024, arXiv:2410.21676).
The rate is the optimizer's `peak_lr`, and the schedule that of the sweeps that it comes from.
"""

import math
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from nlpkit.contracts.reader import TextFile
from nlpkit.data import formats
from nlpkit.data.files import find_files
from nlpkit.data.lines import lines
from nlpkit.json_types import JsonMapping, JsonObject
from nlpkit.models.sizes import Family
from nlpkit.recipe.places import Path as KeyPath
from nlpkit.recipe.settings import Recipe

TOKENS_PER_PARAMETER = 20
EPOCHS = 4
SCHEDULE, WARMUP = "linear", 0.1
SMALLEST_STEP, LARGEST_STEP = 512, 2**20
LENGTHS = ("steps", "epochs", "words", "budget")
WARMUPS = ("warmup_ratio", "warmup_steps")
OTHERS = ("tokens_per_step", "lr", "schedule")
ROWS = "rows_per_step"  # in place of tokens_per_step
SETTINGS = (*LENGTHS, *WARMUPS, *OTHERS, ROWS)  # of `train`
# English with 2,000 tokens has 3.74 bytes of its file for each, Chinese with CPM-Ant's words 3.66.
_BYTES_PER_TOKEN = 3.7
_PACKED, _TIMES = (".gz", ".parquet"), 3  # how much smaller these make text, about


class Refused(Exception):
    """What is wrong with the target, or with another setting."""

    def __init__(self, path: KeyPath, what: str):
        super().__init__(what)
        self.path, self.what = path, what


@dataclass(frozen=True)
class Defaults:
    """What is not set in `given`, the section `train`.

    `target` is the setting that decides; `recipe` the checked recipe, with stand-ins for what is
    open; `base` the folder of its file.
    """

    target: KeyPath
    given: JsonMapping
    recipe: Recipe
    base: Path

    def choose(self, family: Family, width: int, layers: int) -> JsonObject:
        """Return the settings for a model of the family of this size; raise `Refused`."""
        found: JsonObject = {}
        if "lr" not in self.given:
            found["lr"] = self._choose_rate(width, family.config.rate_share)
        if "schedule" not in self.given:
            found["schedule"] = SCHEDULE
        if not any(name in self.given for name in WARMUPS):
            found["warmup_ratio"] = WARMUP
        return found | self._choose_length(family.count(width, layers), family.vocab_size > 0)

    def _choose_rate(self, width: int, share: float) -> float:
        optimizer = self.recipe.train.optimizer
        rate = optimizer.module.peak_lr(optimizer.config, width)
        if rate is None:
            what = f"missing: optimizer {optimizer.name} has no rate for every size; set it"
            raise Refused(("train", "lr"), what)
        return float(f"{rate * share:.2g}")

    def _choose_length(self, parameters: int, has_vocabulary: bool) -> JsonObject:
        """Return steps or epochs, and the tokens of a step."""
        has_length = any(name in self.given for name in LENGTHS)
        if has_length and ("tokens_per_step" in self.given or ROWS in self.given):
            return {}
        epoch = estimate_tokens(self.recipe, self.base) if has_vocabulary else None
        if epoch is None and not has_length:
            why = "there is on stdin" if has_vocabulary else "the images are"
            what = f"missing: {self.target[-1]} needs the amount of text, and how much {why} is "
            what += "not known; set train.steps, epochs, words or budget"
            raise Refused(("train", "steps"), what)
        tokens = float(TOKENS_PER_PARAMETER * parameters)
        by_text = epoch is not None and EPOCHS * epoch < tokens
        if epoch is not None and by_text:
            tokens = EPOCHS * epoch
        if epoch is not None and ROWS in self.given:
            return {"epochs": EPOCHS if by_text else float(f"{tokens / epoch:.3g}")}
        found: JsonObject = {}
        step = self.given.get("tokens_per_step")
        if step is None:
            step = found["tokens_per_step"] = self._choose_step(tokens, epoch)
        if has_length:
            return found
        return found | ({"epochs": EPOCHS} if by_text else {"steps": max(1, round(tokens / step))})

    def _choose_step(self, tokens: float, epoch: float | None) -> int:
        """Return the tokens of a step: about 2 √(all tokens), a power of 2; a multiple of a batch.

        A sequence of the longest length fits.
        """
        if "steps" in self.given:
            tokens = 4.0 * self.given["steps"] ** 2  # as steps · 2 √tokens are all tokens
        elif "epochs" in self.given and epoch is not None:
            tokens = self.given["epochs"] * epoch
        wanted = 2 ** round(math.log2(max(1.0, 2 * math.sqrt(tokens))))
        wanted = min(max(wanted, SMALLEST_STEP), LARGEST_STEP)
        longest = self.recipe.objective[0].config.setting("max_length")
        while longest is not None and wanted < longest:
            wanted *= 2
        batch = self.given.get("tokens_per_batch")
        return wanted if batch is None else batch * max(1, round(wanted / batch))


def estimate_tokens(recipe: Recipe, base: Path) -> float | None:
    """Return about the number of tokens of an epoch of `data.train`, by the sizes of its files.

    It is None with stdin or a pipe. Raise `FileError` for a name that matches no file.
    """
    total = 0.0
    for source in recipe.data.train:
        named = source.format or recipe.data.format
        for path, name in (each for _, of, _ in find_files(source, named, base) for each in of):
            if name == "-" or not path.is_file():
                return None
            times = _TIMES if path.suffix.lower() in _PACKED else 1
            size = times * path.stat().st_size
            form = formats.find_format(name) if named == "auto" else named
            if source.max_rows is not None and form and formats.documents(form) == "lines":
                file = TextFile(str(path), name, form, path.suffix.lower() == ".gz")
                size = sum(map(len, islice(lines(file), source.max_rows)))
            total += source.weight * size
    return total * (1 - recipe.data.valid_fraction) / _BYTES_PER_TOKEN
