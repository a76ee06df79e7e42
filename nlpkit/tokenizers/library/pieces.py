"""Files of SentencePiece as families publish them: what each changes in ids and normalization.

As in transformers' `convert_slow_tokenizer.py`. A text has the ids that SentencePiece gives it.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from tokenizers import normalizers

from nlpkit.disk import read_json
from nlpkit.errors import FileError
from nlpkit.json_types import JsonMapping
from nlpkit.tokenizers.library import named_tokens, sentencepiece
from nlpkit.tokenizers.library.sentencepiece import CONTROL, UNKNOWN, Model, Piece

FILES = ("spiece.model", "sentencepiece.bpe.model", "spm.model", "tokenizer.model")
_MASK = Piece("<mask>", type=CONTROL)
# Families that number their pieces in other ways, which are not read.
UNREAD = ("mbart", "nllb", "pegasus", "xglm", "barthez", "bartpho", "m2m100", "plbart", "rembert")
REMEDY = "nlpkit reads a tokenizer.json with the same ids"


def find(path: Path) -> Path | None:
    """Return the model that a path is or has."""
    if path.suffix == ".model" and path.is_file():
        return path
    return next((path / name for name in FILES if (path / name).is_file()), None)


def load(file: Path, settings: JsonMapping) -> str:
    """Return the `tokenizer.json` of a model and of settings beside it, by the family they name.

    Raises:
        FileError: the model cannot be read, or belongs to a family whose ids are unknown here.
    """
    family = name_family(file.parent, settings)
    if family in UNREAD:
        raise FileError(f"{file}: {family} numbers pieces in a way of its own; {REMEDY}")
    model = sentencepiece.read(file)
    _CHANGES.get(family, lambda model, settings: None)(model, settings)
    before: list[normalizers.Normalizer] = []
    if family in ("albert", "xlnet"):
        before = _cleaning(settings, lowercase=family == "albert")
    library = sentencepiece.to_library(model, before)
    named_tokens.add_tokens(library, settings, file)
    return library.to_str()


def name_family(folder: Path, settings: JsonMapping) -> str:
    """Return the family, in lower-case letters and digits, or "" if no file names one."""
    named = settings.get("tokenizer_class")
    if not isinstance(named, str) or named.startswith("PreTrained"):
        config = folder / "config.json"
        named = read_json(config).get("model_type") if config.is_file() else ""
    return re.sub("tokenizer(fast)?$|[^a-z0-9]", "", str(named).lower())


def _as_xlm_roberta(model: Model, settings: JsonMapping) -> None:
    frame = [Piece("<s>", type=CONTROL), Piece("<pad>", type=CONTROL), Piece("</s>", type=CONTROL)]
    model.pieces = [*frame, Piece("<unk>", type=UNKNOWN), *model.pieces[3:], _MASK]


def _as_camembert(model: Model, settings: JsonMapping) -> None:
    names = ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED")
    kinds = {"<unk>": UNKNOWN}
    frame = [Piece(name, type=kinds.get(name, CONTROL)) for name in names]
    model.pieces = [*frame, *model.pieces[1:], _MASK]


def _as_t5(model: Model, settings: JsonMapping) -> None:
    number = settings.get("extra_ids", 100)
    if not isinstance(number, int) or not 0 <= number <= 1000:
        raise FileError(f"tokenizer_config.json: extra_ids is {number!r}; must be from 0 to 1000")
    names = (f"<extra_id_{i}>" for i in reversed(range(number)))
    model.pieces += [Piece(name, type=CONTROL) for name in names]
    # mT5 has them among its pieces, with a space before each.
    for place, piece in enumerate(model.pieces):
        if re.fullmatch(r"▁<extra_id_\d+>", piece.text):
            model.pieces[place] = Piece(piece.text[1:], type=CONTROL)


def _as_llama(model: Model, settings: JsonMapping) -> None:
    model.add_prefix = bool(settings.get("add_prefix_space", model.add_prefix))


def _as_deberta(model: Model, settings: JsonMapping) -> None:
    for name in ("do_lower_case", "split_by_punct"):
        if settings.get(name):
            raise FileError(f"tokenizer_config.json: {name} is true, which is not read; {REMEDY}")
    if not any(piece.text == "[MASK]" for piece in model.pieces):
        model.pieces.append(Piece("[MASK]", type=CONTROL))


def _without_commas(model: Model, settings: JsonMapping) -> None:
    """Make pieces of a digit and a comma unlikely: ALBERT and XLNet cut the comma off."""
    model.pieces = [
        piece._replace(score=piece.score - 100) if re.search(r"\d,$", piece.text) else piece
        for piece in model.pieces
    ]


def _cleaning(settings: JsonMapping, lowercase: bool) -> list[normalizers.Normalizer]:
    """Return what ALBERT and XLNet do to a text before SentencePiece."""
    steps: list[normalizers.Normalizer] = [
        normalizers.Replace("``", '"'),
        normalizers.Replace("''", '"'),
    ]
    if not settings.get("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if settings.get("do_lower_case", lowercase):
        steps.append(normalizers.Lowercase())
    return steps


_CHANGES: Mapping[str, Callable[[Model, JsonMapping], None]] = {
    "xlmroberta": _as_xlm_roberta,
    "camembert": _as_camembert,
    "t5": _as_t5,
    "mt5": _as_t5,
    "llama": _as_llama,
    "debertav2": _as_deberta,
    "albert": _without_commas,
    "xlnet": _without_commas,
}
