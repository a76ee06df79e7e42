"""A tokenizer of single characters with the three tokens that frame GPT-1's tasks."""

import string

START, DELIMITER, EXTRACT = 90, 91, 92
WORDS = {character: 11 + i for i, character in enumerate(string.ascii_letters + " .")}


class Letters:
    """a is 11, b is 12 …; 1 is unknown."""

    vocab_size, bos_id, eos_id, unk_id, pad_id = 100, None, None, 1, 0

    def special_id(self, token: str) -> int | None:
        return {"_start_": START, "_delimiter_": DELIMITER, "_classify_": EXTRACT}.get(token)

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [[WORDS.get(character, 1) for character in text] for text in texts]
