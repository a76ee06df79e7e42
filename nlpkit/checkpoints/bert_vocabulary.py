"""Published encoder-decoders with BERT's vocabulary, as the Chinese BARTs and T5s have it.

A family's names of special tokens are not in it: `[SEP]`, `[MASK]` and `extra0` are what `</s>`,
`<mask>` and `<extra_id_0>` are elsewhere. By what a target begins is in config.json.
"""

from pathlib import Path

from nlpkit.checkpoints import hf_layout
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.models.config import ModelConfig
from nlpkit.tokenizers.library.hf import LibraryTokenizer

_START = "decoder_start_token_id"


def name_tokens(tokenizer: Tokenizer | None, config: ModelConfig, directory: Path) -> None:
    """Let a checkpoint's tokenizer know its special tokens by the family's names, if it can.

    It cannot where one name of the family stands for two tokens of the checkpoint.
    """
    if not isinstance(tokenizer, LibraryTokenizer) or not config.can("encodes_source"):
        return
    begin, end = config.target_tokens
    lacks = tokenizer.special_id(begin) is None and tokenizer.special_id(end) is None
    if not lacks or None in (tokenizer.special_id("[CLS]"), tokenizer.special_id("[SEP]")):
        return
    first = hf_layout.read_if_there(directory / "config.json").get(_START)
    if not isinstance(first, int) or not 0 <= first < tokenizer.vocab_size:
        return
    names = {end: "[SEP]", config.mask_token: "[MASK]"}
    if names.setdefault(begin, tokenizer.token(first)) == tokenizer.token(first):
        names |= {f"<extra_id_{number}>": f"extra{number}" for number in range(100)}
        tokenizer.aliases = names
        known = {name for name in names if tokenizer.special_id(name) is not None}
        tokenizer.aliases = {name: token for name, token in names.items() if name in known}
