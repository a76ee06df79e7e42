"""Generate text with CKPT from lines of FILE."""

import os
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from nlpkit.commands._checkpoint import make_settings, open_as_asked
from nlpkit.commands._options import Checkpoint, Common, argument, option, shared
from nlpkit.errors import FileError, UsageError
from nlpkit.json_types import JsonObject
from nlpkit.plural import number_of
from nlpkit.text_table import ESCAPES

if TYPE_CHECKING:
    from nlpkit.contracts.objective import Objective
    from nlpkit.generate.inputs import Inputs
    from nlpkit.generate.settings import Settings
    from nlpkit.generate.texts import Output, Writer, Written
    from nlpkit.runs.open_checkpoint import Opened
    from nlpkit.train.log import Log

_KEY = "input"  # of a line of jsonl

File = Annotated[str, argument("FILE|-", "one input per line; - is stdin")]


@dataclass(frozen=True)
class Decoding:
    """The options of `generate.settings.Settings`, which checks them."""

    max_new_tokens: int | None = option(
        "--max-new-tokens N", "default: 128, or half of what the model takes if less"
    )
    min_new_tokens: int = option("--min-new-tokens N", "an output has at least N tokens", default=0)
    beam: int = option("--beam N", "beam search with N beams", default=1)
    nbest: int = option(
        "--nbest N", "N outputs for each input, the best first, with tabs between", default=1
    )
    length_penalty: float = option(
        "--length-penalty X", "rank beams by log-probability / length ** X", default=1.0
    )
    length_penalty_form: Literal["power", "gnmt"] = option(
        "--length-penalty-form FORM",
        "power, or gnmt, Google's: / ((5 + length) / 6) ** X",
        default="power",
    )
    temperature: float | None = option("--temperature X", "sample, with the logits divided by X")
    top_k: int | None = option("--top-k K", "sample from the K likeliest tokens")
    top_p: float | None = option(
        "--top-p P", "sample from the likeliest tokens whose probabilities sum to P"
    )
    repetition_penalty: float = option(
        "--repetition-penalty X", "above 1: repeat less, as in CTRL", default=1.0
    )
    repetition_window: int | None = option(
        "--repetition-window N", "the penalty counts the last N tokens; default all"
    )
    seed: int = option("--seed N", "seed of sampling", default=0)
    stop: list[str] | None = option("--stop TEXT", "an output ends before TEXT; repeatable")
    blank: str = option(
        "--blank TEXT",
        "CPM-Ant, XLNet, GLM: marks a token to fill in; <blank:5> marks five",
        default="<blank>",
    )


@dataclass(frozen=True)
class LineOptions:
    """How lines are read and written."""

    key: str | None = option(
        "--key KEY",
        f"lines are JSON objects with the input in KEY, or a template; default for *.jsonl: {_KEY}",
    )
    chat: bool = option(
        "--chat",
        "a line is a conversation: a JSON list of {role, content}, or an object with messages; the "
        "output is the assistant's next turn, by the tokenizer's chat template",
    )
    echo: bool | None = option(
        "--echo/--no-echo",
        "print the input in front of the output; default: on a terminal, if the output goes on "
        "from it",
        default=None,
        show_default=False,
    )
    batch: int = option("--batch N", "inputs that are computed at once", default=32, min=1)


@shared("precision", "family", "device")
def command(
    checkpoint: Checkpoint, common: Common, decoding: Decoding, lines: LineOptions, file: File = "-"
) -> None:
    """Generate text with CKPT from lines of FILE.

    Each line of input gives one line of output, in the same order, as soon as it is ready. In an
    output, a newline is written as \\n, a carriage return as \\r, a tab as \\t and a backslash as
    \\\\. With --json a line is an object with input, output, score (the log-probability; of beams
    divided by the length penalty), tokens and finish (stop or length).

    Decoding is greedy, unless --beam or one of --temperature, --top-k, --top-p is given. If an
    input is too long, its beginning is left out (of a source its end; with blanks: the tokens
    farthest before them, then after them), and stderr shows how many inputs were cut.
    """
    settings = make_settings(**asdict(decoding) | {"stop": decoding.stop or []})
    log = common.open_log()
    if lines.chat and lines.key:
        raise UsageError("--key: excludes --chat, whose lines are conversations; remove one")
    inputs = _open_inputs(file, lines.key, lines.chat)
    for name, why in settings.without_effect().items():
        if not settings.is_default(name):
            log.warn(f"--{name.replace('_', '-')}: has no effect {why}")
    from nlpkit.contracts.abilities import Filling
    from nlpkit.contracts.task import Task
    from nlpkit.generate.texts import Writer

    opened = open_as_asked(checkpoint, common, log, common.precision)
    objective = _of_conversations(opened) if lines.chat else opened.objective
    writer = Writer(opened.model, opened.tokenizer, objective, settings)
    if not (settings.is_default("blank") or isinstance(objective, Filling)):
        log.warn("--blank: has no effect with a model that fills in no blanks")
    if inputs.is_terminal:
        log.info("one input a line; Ctrl-D ends")
    echo = lines.echo
    if echo is None:  # what a model writes from a source, or as an answer, does not go on
        goes_on = not writer.reads_source and not isinstance(objective, Task)
        echo = goes_on and not common.json and sys.stdout.isatty()
    start = time.perf_counter()
    texts = writer.write(
        inputs, batch=lines.batch, ready=inputs.ready, scores=common.json, warn=log.warn
    )
    for number, written in enumerate(texts, 1):
        if written.problem:
            log.warn(f"input {number}: {written.problem}; its output is empty")
        _print(written, echo, settings, common)
    _report(writer, inputs, time.perf_counter() - start, log)
    if inputs.error:
        raise inputs.error


def _of_conversations(opened: "Opened") -> "Objective":
    from nlpkit.objectives.chat import of_conversations

    try:
        return of_conversations(opened.objective, opened.part.config)
    except ValueError as error:
        raise UsageError(f"--chat: {opened.path}: {error}") from error


def _open_inputs(file: str, key: str | None, chat: bool) -> "Inputs":
    from nlpkit.data.formats import find_format
    from nlpkit.data.template import check_option
    from nlpkit.generate.inputs import Inputs

    check_option("--key", key)
    if file != "-" and not os.path.exists(file):
        raise FileError(f"{file or repr(file)}: no such file")
    if (form := find_format(file)) not in ("", "text", "jsonl"):
        raise UsageError(f"{file}: {form} is not read here; an input is a line of txt or jsonl")
    if file == "-" and sys.stdin is None:
        raise UsageError("FILE: '-' is stdin, but stdin is closed")
    return Inputs(file, key or (_KEY if form == "jsonl" and not chat else None))


def _print(written: "Written", echo: bool, settings: "Settings", common: Common) -> None:

    def shown(output: "Output") -> str:
        # A text with filled blanks contains the input.
        return written.text + output.text if echo and not output.whole else output.text

    outputs = [
        {
            "output": shown(output),
            "score": output.score,
            "tokens": output.tokens,
            "finish": "stop" if output.ended else "length",
        }
        for output in written.outputs
    ]
    best = outputs[0] if outputs else {"output": "", "score": None, "tokens": 0, "finish": None}
    values: JsonObject = {"input": written.text, **best}
    if settings.nbest > 1:
        values["nbest"] = outputs
    text = "\t".join(shown(output).translate(ESCAPES) for output in written.outputs)
    common.print_result(text, **values)


def _report(writer: "Writer", inputs: "Inputs", seconds: float, log: "Log") -> None:
    counts = writer.counts
    log.info(
        f"{number_of(counts['inputs'], 'inputs')}, {number_of(counts['tokens'], 'tokens')} in "
        f"{seconds:.1f} s, {counts['tokens'] / max(seconds, 1e-9):,.0f} tokens/s"
    )
    if inputs.blank:
        blank = number_of(inputs.blank, "empty lines between the objects were skipped")
        log.warn(f"{inputs.name}: {blank}")
