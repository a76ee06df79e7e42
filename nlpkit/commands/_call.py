"""The options of one call of `nlpkit eval`, checked before anything heavy is imported."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nlpkit.commands._options import Common
from nlpkit.disk import whole_file
from nlpkit.errors import UsageError

OPTION_SCORES = ("sum", "token", "neutral")


@dataclass(frozen=True)
class Call:
    """What the user asked for; see the options in `commands/eval.py`."""

    checkpoint: str
    common: Common
    data: tuple[str, ...]
    metrics: list[str] | None
    predictions: str | None
    text_key: str | None
    tokens_per_batch: int
    max_new_tokens: int | None
    beam: int | None
    length_penalty: float | None
    family: str | None
    files: tuple[str, ...]
    pairs: tuple[str, ...]
    surprisal: str | None
    method: str | None
    task: str | None
    shots: int
    seeds: int
    option_score: str | None
    template: str | None
    show_prompt: bool
    confusion: str | None = None
    attention: str | None = None
    attention_layer: int | None = None
    precision: str = "auto"

    @property
    def is_of_texts(self) -> bool:
        """Return whether the texts of files are scored."""
        return bool(self.pairs) or self.surprisal is not None

    def check(self) -> None:
        """Raise `UsageError` for options that do not fit together."""
        if self.precision != "auto" and (self.task is not None or self.is_of_texts):
            raise UsageError("--precision excludes --task, --pairs and --surprisal, which are fp32")
        if self.confusion is not None:
            self._check_confusion(self.confusion)
        if self.files and not self.pairs:
            raise UsageError(f"unexpected argument {self.files[0]} (see nlpkit eval --help)")
        if self.task is None:
            for name, given in (
                ("--shots", self.shots),
                ("--seeds", self.seeds > 1),
                ("--option-score", self.option_score),
                ("--template", self.template),
                ("--show-prompt", self.show_prompt),
                ("--set", self.common.overrides),
            ):
                if given:
                    raise UsageError(f"{name}: needs --task RECIPE, the task to score")
        elif self.is_of_texts:
            raise UsageError("--task excludes --pairs and --surprisal; give one of them")
        if self.option_score is not None and self.option_score not in OPTION_SCORES:
            raise UsageError(
                f"--option-score {self.option_score}: is none of {', '.join(OPTION_SCORES)}"
            )
        if self.attention is not None and (self.task is not None or self.is_of_texts):
            raise UsageError("--attention excludes --task, --pairs and --surprisal")
        if self.attention is None and self.attention_layer is not None:
            raise UsageError("--attention-layer: needs --attention FILE.png")
        if self.seeds > 1 and not self.shots:
            raise UsageError("--seeds: without examples (--shots 0) nothing is drawn; give --shots")
        if self.is_of_texts:
            self._check_texts()
        elif self.method is not None and self.task is None:
            raise UsageError("--method: needs --pairs, --surprisal or --task")

    def _check_confusion(self, file: str) -> None:
        if self.task is not None or self.is_of_texts:
            raise UsageError("--confusion: needs the held-out rows of a tuned checkpoint")
        if not file.lower().endswith(".png"):
            raise UsageError(f"--confusion {file}: the table is drawn as PNG; name it FILE.png")

    def _check_texts(self) -> None:
        if self.metrics:
            raise UsageError("--metrics: --pairs and --surprisal have figures of their own")
        if self.pairs and self.data:
            raise UsageError("--data excludes --pairs, whose sentences are scored")
        if not self.pairs and not self.data:
            raise UsageError("--surprisal: name the sentences: --data FILE or --pairs FILE")
        if self.predictions is not None and not self.pairs:
            raise UsageError("--predictions: --surprisal FILE.tsv has the values of all sentences")


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a JSON object per line; raise `FileError`."""
    with whole_file(path) as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
