"""Generate text with CKPT from lines of FILE."""

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nlpkit.commands._decoding import decoding_settings
from nlpkit.commands._options import Common, Family, Precision, shared
from nlpkit.errors import UsageError
from nlpkit.plural import number_of

if TYPE_CHECKING:
    from nlpkit.generate.inputs import Inputs
    from nlpkit.generate.settings import Settings
    from nlpkit.generate.texts import Output, Writer, Written
    from nlpkit.train.log import Log

_KEY = "input"  # of a line of jsonl
# Characters that would end a line or a column, and the backslash.
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t"})

Checkpoint = Annotated[
    str,
    typer.Argument(
        metavar="CKPT",
        help="a run (its best checkpoint), a checkpoint, or a directory of transformers",
    ),
]
File = Annotated[str, typer.Argument(metavar="FILE|-", help="one input per line; - is stdin")]
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="KEY",
        help=f"lines are JSON objects with the input in KEY, or a template; default for *.jsonl: "
        f"{_KEY}",
    ),
]
Beam = Annotated[int, typer.Option("--beam", metavar="N", help="beam search with N beams")]
NBest = Annotated[
    int,
    typer.Option(
        "--nbest", metavar="N", help="N outputs for each input, the best first, with tabs between"
    ),
]
LengthPenalty = Annotated[
    float,
    typer.Option(
        "--length-penalty", metavar="X", help="rank beams by log-probability / length ** X"
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option("--temperature", metavar="X", help="sample, with the logits divided by X"),
]
TopK = Annotated[
    int | None, typer.Option("--top-k", metavar="K", help="sample from the K likeliest tokens")
]
TopP = Annotated[
    float | None,
    typer.Option(
        "--top-p", metavar="P", help="sample from the likeliest tokens whose probabilities sum to P"
    ),
]
MaxNewTokens = Annotated[
    int | None,
    typer.Option(
        "--max-new-tokens",
        metavar="N",
        help="default: 128, or half of what the model takes if less",
    ),
]
MinNewTokens = Annotated[
    int, typer.Option("--min-new-tokens", metavar="N", help="an output has at least N tokens")
]
RepetitionPenalty = Annotated[
    float,
    typer.Option("--repetition-penalty", metavar="X", help="above 1: repeat less, as in CTRL"),
]
RepetitionWindow = Annotated[
    int | None,
    typer.Option(
        "--repetition-window", metavar="N", help="the penalty counts the last N tokens; default all"
    ),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="seed of sampling")]
Batch = Annotated[
    int, typer.Option("--batch", metavar="N", min=1, help="inputs that are computed at once")
]
Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", metavar="TEXT", help="an output ends before TEXT; repeatable"),
]
Blank = Annotated[
    str,
    typer.Option(
        "--blank",
        metavar="TEXT",
        help="CPM-Ant, XLNet: marks a token to fill in; <blank:5> marks five",
    ),
]
Echo = Annotated[bool, typer.Option("--echo", help="print the input in front of the output")]


@shared("device", "json", "quiet", "verbose")
def command(
    checkpoint: Checkpoint,
    common: Common,
    file: File = "-",
    key: Key = None,
    max_new_tokens: MaxNewTokens = None,
    min_new_tokens: MinNewTokens = 0,
    beam: Beam = 1,
    nbest: NBest = 1,
    length_penalty: LengthPenalty = 1.0,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    repetition_penalty: RepetitionPenalty = 1.0,
    repetition_window: RepetitionWindow = None,
    seed: Seed = 0,
    stop: Stop = None,
    blank: Blank = "<blank>",
    echo: Echo = False,
    batch: Batch = 32,
    precision: Precision = "auto",
    family: Family = None,
) -> None:
    """Generate text with CKPT from lines of FILE.

    Each line of input gives one line of output, in the same order, as soon as it is ready. In an
    output, a newline is written as \\n, a carriage return as \\r, a tab as \\t and a backslash as
    \\\\. With --json a line is an object with input, output, score (the log-probability; of beams
    divided by length ** penalty), tokens and finish (stop or length).

    Decoding is greedy, unless --beam or one of --temperature, --top-k, --top-p is given. If an
    input is too long, its beginning is left out (with blanks: the tokens farthest before them, then
    after them), and stderr shows how many inputs were cut.
    """
    settings = decoding_settings(
        max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens,
        beam=beam,
        nbest=nbest,
        length_penalty=length_penalty,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        repetition_penalty=repetition_penalty,
        repetition_window=repetition_window,
        seed=seed,
        stop=stop or [],
        blank=blank,
    )
    from nlpkit.data.template import check_option
    from nlpkit.generate.inputs import Inputs
    from nlpkit.train.log import Log

    check_option("--key", key or None)

    is_json = file.removesuffix(".gz").endswith(".jsonl")
    if file == "-" and sys.stdin is None:
        raise UsageError("FILE: '-' is stdin, but stdin is closed")
    inputs = Inputs(file, key or (_KEY if is_json else None))
    log = Log(common.verbosity)
    for name, why in settings.without_effect().items():
        if not settings.is_default(name):
            log.warn(f"--{name.replace('_', '-')}: has no effect {why}")
    from nlpkit.generate.texts import Writer
    from nlpkit.runs.opened import open_checkpoint

    opened = open_checkpoint(
        checkpoint,
        device=common.device,
        precision=precision,
        family=family,
        info=log.info,
        warn=log.warn,
    )
    writer = Writer(opened.model, opened.tokenizer, opened.objective, settings)
    if inputs.is_terminal:
        log.info("one input a line; Ctrl-D ends")
    start = time.perf_counter()
    texts = writer.write(inputs, batch=batch, ready=inputs.ready, scores=common.json)
    for number, written in enumerate(texts, 1):
        if written.problem:
            log.warn(f"input {number}: {written.problem}; its output is empty")
        _print(written, echo, settings, common)
    _report(writer, inputs, time.perf_counter() - start, log)
    if inputs.error:
        raise inputs.error


def _print(written: "Written", echo: bool, settings: "Settings", common: Common) -> None:
    """Print the line for one input."""

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
    values: dict[str, Any] = {"input": written.text, **best}
    if settings.nbest > 1:
        values["nbest"] = outputs
    text = "\t".join(shown(output).translate(_ESCAPES) for output in written.outputs)
    common.result(text, **values)


def _report(writer: "Writer", inputs: "Inputs", seconds: float, log: "Log") -> None:
    """Log the speed, and the numbers of inputs and tokens that were left out."""
    counts = writer.counts
    if not counts["inputs"]:
        return
    log.info(
        f"{number_of(counts['inputs'], 'inputs')}, {number_of(counts['tokens'], 'tokens')} in "
        f"{seconds:.1f} s, "
        f"{counts['tokens'] / max(seconds, 1e-9):,.0f} tokens/s"
    )
    if counts["cut inputs"]:
        included = "end token included" if writer.reads_source else "output included"
        log.warn(
            f"{number_of(counts['cut inputs'], 'inputs were')} too long and cut by "
            f"{number_of(counts['cut tokens'], 'tokens')}; the model takes "
            f"{writer.objective.max_length:,}, {included}"
        )
    if counts["unknown tokens"]:
        unknown = number_of(counts["unknown tokens"], "unknown tokens of the inputs were left out")
        log.warn(unknown)
    if inputs.blank:
        blank = number_of(inputs.blank, "empty lines between the objects were skipped")
        log.warn(f"{inputs.name}: {blank}")
