"""Reads a model of SentencePiece (`spiece.model`) without its library.

The file is a message of protocol buffers (protobuf.dev/programming-guides/encoding), ModelProto of
github.com/google/sentencepiece, src/sentencepiece_model.proto. Text is normalized, cut and encoded
as there: a control token that is written in a text is characters. So is a byte, such as `<0x41>`,
of BPE; unigrams with bytes take the piece of that name, as in transformers.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from nlpkit.errors import FileError

SPACE = "▁"
UNIGRAM, BPE = 1, 2
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


class Piece(NamedTuple):
    """A piece with its score, the logarithm of a probability, and its type."""

    text: str
    score: float = 0.0
    type: int = NORMAL


@dataclass
class Model:
    """What a file holds; the defaults are those of the format."""

    pieces: list[Piece] = field(default_factory=list)
    algorithm: int = UNIGRAM
    byte_fallback: bool = False
    charsmap: bytes = b""  # of the normalization
    add_prefix: bool = True
    collapse_spaces: bool = True
    space_ends: bool = False  # whether a space belongs to the word before it

    def number(self, kind: int) -> int | None:
        """Return the id of the first piece of a type."""
        return next((i for i, piece in enumerate(self.pieces) if piece.type == kind), None)


def read(file: Path) -> Model:
    """Return the model in a file; raise `FileError` if it is none, or of words or characters."""
    try:
        model = _parse(file.read_bytes())
    except OSError as error:
        raise FileError(f"{file}: cannot be read: {error.strerror}") from error
    except (ValueError, IndexError, struct.error) as error:
        raise FileError(f"{file}: not a model of SentencePiece, or damaged") from error
    if model.algorithm not in (UNIGRAM, BPE):
        raise FileError(f"{file}: its pieces are words or characters; unigram and bpe are read")
    if model.space_ends:
        raise FileError(f"{file}: its pieces end with the space (treat_whitespace_as_suffix)")
    if model.number(UNKNOWN) is None:
        raise FileError(f"{file}: not a model of SentencePiece: no piece is the unknown one")
    if model.algorithm == BPE and (number := model.number(USER_DEFINED)) is not None:
        token = model.pieces[number].text
        raise FileError(f"{file}: {token!r} is a symbol of its users, which only unigram may have")
    return model


def _parse(data: bytes) -> Model:
    model = Model()
    for number, value in _fields(data):
        if number == 1:
            found = dict(_fields(_bytes(value)))
            (score,) = struct.unpack("<f", _bytes(found.get(2, b"\0\0\0\0")))
            kind = found.get(3, NORMAL)
            model.pieces.append(Piece(_bytes(found.get(1, b"")).decode(), score, int(kind)))
        elif number == 2:
            trainer = dict(_fields(_bytes(value)))
            model.algorithm = int(trainer.get(3, UNIGRAM))
            model.space_ends = bool(trainer.get(24, False))
            model.byte_fallback = bool(trainer.get(35, False))
        elif number == 3:
            rules = dict(_fields(_bytes(value)))
            model.charsmap = _bytes(rules.get(2, b""))
            model.add_prefix = bool(rules.get(3, True))
            model.collapse_spaces = bool(rules.get(4, True))
    return model


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where bytes are expected")
    return value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field of a message; raise `ValueError` or `IndexError`."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        kind = key & 7
        if kind == 0:
            value, place = _varint(data, place)
            yield key >> 3, value
            continue
        if kind == 2:
            size, place = _varint(data, place)
        else:
            size = {1: 8, 5: 4}[kind] if kind in (1, 5) else len(data) + 1
        if place + size > len(data):
            raise ValueError("a field ends after its message")
        yield key >> 3, data[place : place + size]
        place += size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for index in range(10):
        byte = data[place + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, place + index + 1
    raise ValueError("a number of more than 64 bits")


def to_library(model: Model, before: Sequence[normalizers.Normalizer]) -> Library:
    """Return a tokenizer of the library with the same ids.

    Args:
        before: what is done to a text before SentencePiece reads it.
    """
    library = Library(_unigram(model) if model.algorithm == UNIGRAM else _byte_pairs(model))
    steps = [*before]
    if model.charsmap:
        steps.append(normalizers.Precompiled(model.charsmap))
    if model.collapse_spaces:
        steps += [normalizers.Replace(Regex(rf"\A +|[ {SPACE}]+\z"), "")]
        steps += [normalizers.Replace(Regex(" {2,}"), " ")]
    steps += [normalizers.Prepend(SPACE)] if model.add_prefix else []
    library.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    library.decoder = make_decoder(model.add_prefix)
    special = [p.text for p in model.pieces if p.type in (CONTROL, UNKNOWN)]
    library.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    if model.algorithm == UNIGRAM and not any(SPACE in p.text[1:] for p in model.pieces):
        library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    return library


def make_decoder(has_prefix: bool) -> decoders.Decoder:
    """Return what makes a text of pieces; with a prefix, a text has a space in front of it."""
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if has_prefix else steps)


def _unigram(model: Model) -> models.Unigram:
    scores = [piece.score for piece in model.pieces if piece.type == NORMAL]
    top = max(scores, default=0.0)

    def score(piece: Piece) -> float:
        if piece.type == USER_DEFINED:  # the bonus with which it is always chosen
            return len(piece.text.encode()) * top - 0.1
        return piece.score

    pieces = [(piece.text, score(piece)) for piece in model.pieces]
    return models.Unigram(pieces, model.number(UNKNOWN), model.byte_fallback)


def _byte_pairs(model: Model) -> models.BPE:
    """Return pairs that merge into the piece of the highest score first."""
    ids = {piece.text: number for number, piece in enumerate(model.pieces)}
    known = {p.text for p in model.pieces if p.type in (NORMAL, UNUSED)}
    merges = []
    for piece in sorted(model.pieces, key=lambda p: -p.score):
        if piece.type == NORMAL:
            halves = ((piece.text[:i], piece.text[i:]) for i in range(1, len(piece.text)))
            found = [(a, b) for a, b in halves if a in known and b in known]
            merges += sorted(found, key=lambda pair: (ids[pair[0]], ids[pair[1]]))
    unknown = model.pieces[model.number(UNKNOWN) or 0].text
    return models.BPE(
        ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=model.byte_fallback
    )
