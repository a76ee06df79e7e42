"""Write a checkpoint for transformers, with adapters merged, in any precision."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from nlpkit.byte_sizes import parsed
from nlpkit.commands._options import Common, Family, shared
from nlpkit.disk import user_path
from nlpkit.errors import UsageError

Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="CKPT…",
        help="a checkpoint, a run, adapters of peft, or CPM-Live's cpm-ant-10b.pt; "
        "with --average, several",
    ),
]
Out = Annotated[str, typer.Argument(metavar="OUT", help="a directory that is new or empty")]
Average = Annotated[
    bool, typer.Option("--average", help="write the mean of the weights of several checkpoints")
]


@dataclass(frozen=True)
class Written:
    """How the weights are written."""

    precision: Annotated[
        Literal["fp32", "bf16", "fp16"] | None,
        typer.Option(metavar="NAME", help="fp32, bf16 or fp16; default: as the weights are stored"),
    ] = None
    max_shard_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="write several files of weights of at most SIZE each, such as 2GB, with an index",
        ),
    ] = None


@dataclass(frozen=True)
class Beside:
    """What a checkpoint does not say itself."""

    config: Annotated[
        str | None,
        typer.Option("--config", metavar="FILE", help="the JSON file of a .pt, if it is elsewhere"),
    ] = None
    vocab: Annotated[
        str | None,
        typer.Option(
            "--vocab", metavar="FILE", help="the tokenizer, if it is not with the weights"
        ),
    ] = None
    family: Family = None


@shared("json", "quiet", "verbose")
def command(
    checkpoints: Sources,
    out: Out,
    common: Common,
    written: Written,
    beside: Beside,
    average: Average = False,
) -> None:
    """Write a checkpoint for transformers, with adapters merged, in any precision.

    With --average, the weights of OUT are the mean of those of several checkpoints of a model.
    OUT holds config.json, model.safetensors, the tokenizer, nlpkit.json and a model card,
    README.md. Every command of nlpkit opens it, and `from_pretrained` if transformers has the
    model. RUN is its best checkpoint, else its latest; RUN/best and RUN/latest are those. An error
    leaves no partial OUT. Prints OUT.
    """
    if average and len(checkpoints) < 2:
        raise UsageError("--average: give at least two checkpoints and OUT")
    if len(checkpoints) > 1 and not average:
        raise UsageError("several checkpoints: --average writes the mean of their weights")
    from nlpkit.runs.convert import Options, convert
    from nlpkit.train.log import Log

    log = Log(common.verbosity)
    options = Options(
        precision=written.precision,
        config=_expand_path(beside.config),
        vocabulary=_expand_path(beside.vocab),
        family=beside.family,
        average=[user_path(each) for each in checkpoints[1:]],
        max_shard=_shard_size(written.max_shard_size),
    )
    source = user_path(checkpoints[0])
    made = convert(source, user_path(out), options, info=log.info, warn=log.warn)
    log.info(
        f"{made['parameters']:,} parameters in {made['precision']}, {made['bytes']:,} bytes"
        + (f" in {made['files']} files" if made["files"] > 1 else "")
    )
    log.info(f"to share it, fill in the licence in its README.md, then: {made['upload']}")
    common.print_result(made["checkpoint"], **made)


def _shard_size(size: str | None) -> int | None:
    try:
        return None if size is None else parsed(size)
    except ValueError as error:
        raise UsageError(f"--max-shard-size: {error}") from error


def _expand_path(name: str | None) -> Path | None:
    return None if name is None else user_path(name)
