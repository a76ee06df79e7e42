"""What stands around texts in `tokenizer.json`: as `transformers` reads it, and not in our ids."""

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from nlpkit import registry
from nlpkit.checkpoints import tokenizer_files
from nlpkit.checkpoints.tokenizer_files import Use
from nlpkit.contracts.tokenizer import Template
from nlpkit.tokenizers.library.hf import LibraryTokenizer
from nlpkit.tokenizers.library.template import with_template, with_words

TEXTS = ["Mara took two apples to Windle.", "The bridge is closed, and the market, too."] * 9
FRAME = Template("<a>:0 $A:0 <b>:0", "<a>:0 $A:0 <b>:0 $B:1 <b>:1", ("<m>",))
SIZES = {"bpe": 300, "unigram": 330, "wordpiece": 90, "gpt1_bpe": 90}


def _trained(kind: str) -> LibraryTokenizer:
    module = registry.load("tokenizers", kind)
    made = module.Tokenizer.train(TEXTS, module.Config(vocab_size=SIZES[kind]))
    return made.extended(["<a>", "<b>", "<m>"])


@pytest.mark.parametrize("kind", SIZES)
def test_template_is_read_by_transformers_and_not_by_us(kind: str, tmp_path: Path) -> None:
    plain = _trained(kind)
    settings = {
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "model_max_length": 30,
    }
    tokenizer_files.save(plain, tmp_path, Use(settings, FRAME))
    ours = tokenizer_files.load(tmp_path)[1]
    first, second = plain.encode_batch(TEXTS[:2])
    assert ours.encode_batch(TEXTS[:2]) == [first, second]
    written = "<a> Mara <m> apples <b>"  # ordinary text
    assert ours.encode(written) == plain.encode(written)
    assert tokenizer_files.reads_alike(ours, plain)
    assert ours.fingerprint() != plain.fingerprint()
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.model_max_length == 30
    a, b, _ = (plain.special_id(token) for token in ("<a>", "<b>", "<m>"))
    assert theirs(TEXTS[0])["input_ids"] == [a, *first, b]
    both = theirs(TEXTS[0], TEXTS[1])
    assert both["input_ids"] == [a, *first, b, *second, b]
    assert both["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    words = theirs("Mara <m> apples", add_special_tokens=False)["input_ids"]
    assert words == [*plain.encode("Mara"), plain.special_id("<m>"), *plain.encode(" apples")]


def test_template_takes_the_place_of_another_and_offsets_stay() -> None:
    content = _trained("bpe")._library.to_str()
    own = json.loads(content)["post_processor"]
    assert own["type"] == "ByteLevel"
    once = with_template(content, FRAME)
    other = Template("$A:0 <b>:0", "$A:0 <b>:0 $B:0 <b>:0")
    found = json.loads(with_template(once, other))["post_processor"]["processors"]
    assert found[0] == own
    assert [each["type"] for each in found] == ["ByteLevel", "TemplateProcessing"]
    assert [*found[1]["special_tokens"]] == ["<b>"]


def test_file_that_makes_the_sequences_already_is_unchanged() -> None:
    tokenizer = registry.load("tokenizers", "wordpiece").Tokenizer
    content = tokenizer.train(TEXTS, registry.load("tokenizers", "wordpiece").Config(vocab_size=90))
    text = content._library.to_str()
    bert = Template("[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", ("[MASK]",))
    assert with_template(text, bert) is text
    assert with_words(text, ["[MASK]"]) is text  # spaces are no tokens


def test_text_that_is_continued_has_nothing_behind_it() -> None:
    content = _trained("bpe")._library.to_str()
    assert with_template(content, Template("$A:0", "$A:0 $B:0"))
    made = json.loads(with_template(with_template(content, FRAME), Template("$A:0", "$A:0 $B:0")))
    assert made["post_processor"]["processors"][-1]["special_tokens"] == {}
