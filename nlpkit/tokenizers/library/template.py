"""The special tokens around the texts that a model reads, as `transformers` puts them there.

nlpkit's tokenizers add no special tokens: objectives do. `transformers` has them in the
post-processor of `tokenizer.json`, a template of one text and one of two. Ids of texts do not
depend on it where special tokens are not asked for.
"""

import json
from collections.abc import Iterable, Iterator

from tokenizers import Tokenizer as Library
from tokenizers import processors

from nlpkit.contracts.tokenizer import Template
from nlpkit.json_types import JsonObject

# transformers' own, of two families.
BERT = Template("[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1")
T5 = Template("$A:0 </s>:0", "$A:0 </s>:0 $B:0 </s>:0")


def set_template(library: Library, template: Template) -> None:
    """Let a tokenizer put the tokens of a template, which it has, around texts."""
    ids = [(token, library.token_to_id(token)) for token in sorted(template.tokens)]
    library.post_processor = processors.TemplateProcessing(
        single=template.single, pair=template.pair, special_tokens=ids
    )


def with_template(content: str, template: Template) -> str:
    """Return a `tokenizer.json` that makes these sequences; it is unchanged if it does already.

    What a processor does to the offsets of bytes stays.
    """
    library, wanted = Library.from_str(content), Library.from_str(content)
    set_template(wanted, template)
    if all(_make(library, second) == _make(wanted, second) for second in (None, "b")):
        return content
    found = json.loads(content)
    kept = [each for each in _processors(found["post_processor"]) if each["type"] == "ByteLevel"]
    made = json.loads(wanted.to_str())["post_processor"]
    found["post_processor"] = {"type": "Sequence", "processors": [*kept, made]} if kept else made
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def with_words(content: str, tokens: Iterable[str]) -> str:
    """Return a `tokenizer.json` in which these tokens stand for words, with the space before them.

    `two [MASK] apples` then has the tokens of the two words around it. Where a space is no token,
    the file is unchanged.
    """
    library = Library.from_str(content)
    changed = {
        token
        for token in tokens
        if library.encode(f"a {token}", add_special_tokens=False).ids
        != library.encode(f"a{token}", add_special_tokens=False).ids
    }
    if not changed:
        return content
    found = json.loads(content)
    for each in found["added_tokens"]:
        each["lstrip"] = each["lstrip"] or each["content"] in changed
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def _make(library: Library, second: str | None) -> tuple[list[int], list[int]]:
    encoding = library.encode("a", second)
    return encoding.ids, encoding.type_ids


def _processors(found: JsonObject | None) -> Iterator[JsonObject]:
    if found is not None and found["type"] == "Sequence":
        for each in found["processors"]:
            yield from _processors(each)
    elif found is not None:
        yield found
