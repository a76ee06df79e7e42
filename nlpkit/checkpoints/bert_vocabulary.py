"""Models of other families with BERT's vocabulary, as Chinese BARTs and T5s have it.

A family's names of special tokens are not in it: `[CLS]`, `[SEP]`, `[MASK]` and `extra0` are what
`<s>`, `</s>`, `<mask>` and `<extra_id_0>` are elsewhere.
"""

from pathlib import Path

from nlpkit.checkpoints import hf_layout
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.models.config import ModelConfig
from nlpkit.tokenizers.library.hf import LibraryTokenizer

_NAMES = {"<s>": "[CLS]", "</s>": "[SEP]", "<mask>": "[MASK]"}
_NAMES |= {f"<extra_id_{number}>": f"extra{number}" for number in range(100)}


def name_tokens(tokenizer: Tokenizer | None, config: ModelConfig, directory: Path | None) -> None:
    """Let a tokenizer know its special tokens by the family's names, if it can.

    By what a target begins is in the config.json of a checkpoint; a new model has no `directory`.
    It cannot where one name of the family stands for two tokens of the checkpoint.
    """
    if not isinstance(tokenizer, LibraryTokenizer):
        return
    reads_source = config.can("encodes_source")
    frame = config.target_tokens if reads_source else config.task_tokens
    lacks = all(tokenizer.special_id(token) is None for token in frame)
    if not lacks or "</s>" not in frame or tokenizer.special_id("[SEP]") is None:
        return
    names = dict(_NAMES)
    if reads_source and directory is not None:
        settings = hf_layout.read_if_there(directory / "config.json")
        first = settings.get("decoder_start_token_id")
        if not isinstance(first, int) or not 0 <= first < tokenizer.vocab_size:
            return
        if names.setdefault(frame[0], tokenizer.token(first)) != tokenizer.token(first):
            return
    tokenizer.aliases = names
    known = [name for name in names if tokenizer.special_id(name) is not None]
    tokenizer.aliases = {name: names[name] for name in known}
