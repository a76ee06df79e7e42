"""Write a checkpoint for transformers, with adapters merged, or vectors of tokens for gensim."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from nlpkit import units
from nlpkit.commands._options import Common, argument, option, parse_by, shared
from nlpkit.disk import user_path
from nlpkit.errors import UsageError

Sources = Annotated[
    list[str],
    argument(
        "CKPT…",
        "a checkpoint, a run, adapters of peft, or CPM-Live's cpm-ant-10b.pt; "
        "with --average, several",
    ),
]
Out = Annotated[str, argument("OUT", "a directory that is new or empty; of word2vec a new file")]


@dataclass(frozen=True)
class Asked:
    """How the weights are written, and what a checkpoint does not say itself."""

    to: Literal["transformers", "word2vec"] = option(
        "--to LAYOUT",
        "transformers; or word2vec: the vectors of tokens, as text that gensim reads",
        default="transformers",
    )
    average: bool = option("--average", "write the mean of the weights of several checkpoints")
    precision: Literal["fp32", "bf16", "fp16"] | None = option(
        "--precision NAME", "fp32, bf16 or fp16; default: as the weights are stored"
    )
    max_shard_size: int | None = option(
        "--max-shard-size SIZE",
        "write several files of weights of at most SIZE each, such as 2GB, with an index",
        parser=parse_by(units.parse_bytes),
    )
    config: str | None = option("--config FILE", "the JSON file of a .pt, if it is elsewhere")
    adapters: str | None = option(
        "--adapters FILE", "CPM-Live's LoRA adapters, best.pt, to merge into its release"
    )
    vocab: str | None = option("--vocab FILE", "the tokenizer, if it is not with the weights")


@shared("family")
def command(checkpoints: Sources, out: Out, common: Common, asked: Asked) -> None:
    """Write a checkpoint for transformers, with adapters merged, in any precision.

    With --average, the weights of OUT are the mean of those of several checkpoints of a model.
    OUT holds config.json, model.safetensors, the tokenizer, nlpkit.json and a model card,
    README.md. Every command of nlpkit opens it, and `from_pretrained` if transformers has the
    model. RUN is its best checkpoint, else its latest; RUN/best and RUN/latest are those. An error
    leaves no partial OUT. Prints OUT.

    With --to word2vec, OUT is a text file: tokens and width, then a token and its vector in each
    line. White space in a token becomes ▁.
    """
    if asked.average and len(checkpoints) < 2:
        raise UsageError("--average: give at least two checkpoints and OUT")
    if len(checkpoints) > 1 and not asked.average:
        raise UsageError("several checkpoints: --average writes the mean of their weights")
    if asked.to == "word2vec":
        _write_vectors(checkpoints[0], out, common, asked)
        return
    from nlpkit.runs.convert import Options, convert

    log = common.open_log()
    options = Options(
        precision=asked.precision,
        config=user_path(asked.config) if asked.config else None,
        adapters=user_path(asked.adapters) if asked.adapters else None,
        vocabulary=user_path(asked.vocab) if asked.vocab else None,
        family=common.family,
        average=[user_path(each) for each in checkpoints[1:]],
        max_shard=asked.max_shard_size,
    )
    source = user_path(checkpoints[0])
    made = convert(source, user_path(out), options, info=log.info, warn=log.warn)
    files = f" in {made['files']} files" if made["files"] > 1 else ""
    size = f"{made['bytes']:,} bytes{files}"
    log.info(f"{made['parameters']:,} parameters in {made['precision']}, {size}")
    log.info(f"to share it, fill in the licence in its README.md, then: {made['upload']}")
    common.print_result(made["checkpoint"], **made)


def _write_vectors(checkpoint: str, out: str, common: Common, asked: Asked) -> None:
    """Write the text file of --to word2vec; raise `UsageError` for options of the other layout."""
    if replace(asked, to="transformers") != Asked():
        raise UsageError("--to word2vec: it writes a text file; leave out the other options")
    from nlpkit.runs.word_vectors import write_text

    log = common.open_log()
    source = user_path(checkpoint)
    made = write_text(source, user_path(out), common.family, info=log.info, warn=log.warn)
    log.info(f"{made['tokens']:,} tokens, {made['width']} numbers each")
    common.print_result(made["file"], **made)
