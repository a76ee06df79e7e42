"""GPT-1's tokenizer against transformers' OpenAIGPTTokenizer, id for id; its files; training.

transformers 5 has OpenAIGPTTokenizer on the `tokenizers` library alone (lower-cased, split as by
BERT's BasicTokenizer): that is the oracle. The paper's way, ftfy and spaCy, is in no release of 5.
"""

import json
import pickle
import random
from collections import Counter
from pathlib import Path

import pytest
from transformers import AutoTokenizer, OpenAIGPTTokenizer

from nlpkit import recipe, registry
from nlpkit.checkpoints import tokenizer_files
from nlpkit.data.store import Callbacks
from nlpkit.errors import FileError
from nlpkit.runs.build import model_part
from nlpkit.runs.vocabulary import TrainingText, build_tokenizer
from nlpkit.tokenizers import bpe, gpt1_bpe
from nlpkit.tokenizers.gpt1_bpe import Config, Tokenizer
from tests import _tiny
from tests.conftest import REAL_DATA

TEXTS = ["The cat sat on the mat.", "A cat, a hat, and that cat's mat!", "Cats sat. Hats sat."] * 3
# By hand: t h -> th, th e</w> -> the</w>; a word's end is in its last piece.
VOCABULARY = ["<unk>", "t", "h", "e", "e</w>", "h</w>", ".</w>", "th", "the</w>"]
MERGES = ["t h", "th e</w>"]


def _write(folder: Path, vocab: str = "vocab.json", merges: str = "merges.txt") -> Path:
    folder.mkdir(exist_ok=True)
    ids = {token: number for number, token in enumerate(VOCABULARY)}
    (folder / vocab).write_text(json.dumps(ids), encoding="utf-8")
    (folder / merges).write_text("#version: 0.2\n" + "\n".join(MERGES) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def openai() -> Tokenizer:
    kind, tokenizer = tokenizer_files.load(REAL_DATA / "gpt1_bpe")
    assert kind == "gpt1_bpe"
    return tokenizer


@pytest.fixture(scope="module")
def oracle() -> OpenAIGPTTokenizer:
    folder = REAL_DATA / "gpt1_bpe"
    lines = (folder / "vocab_40000.bpe").read_text(encoding="utf-8").split("\n")[1:-1]
    return OpenAIGPTTokenizer(
        vocab=json.loads((folder / "encoder_bpe_40000.json").read_text(encoding="utf-8")),
        merges=[tuple(line.split()) for line in lines],
    )


@pytest.mark.parametrize(
    "names", [("vocab.json", "merges.txt"), ("encoder_bpe_40000.json", "vocab_40000.bpe")]
)
def test_ids_of_hand_written_files_are_by_the_merges(tmp_path, names) -> None:
    kind, tokenizer = tokenizer_files.load(_write(tmp_path, *names))
    assert kind == "gpt1_bpe"
    # the | t h </w> | h e | . | x is in no piece
    assert tokenizer.encode("The th he. X") == [8, 1, 5, 2, 4, 6, 0]
    assert tokenizer.decode([8, 2, 4, 6]) == "the he ."
    assert (tokenizer.unk_id, tokenizer.eos_id, tokenizer.bos_id) == (0, None, None)
    assert tokenizer.token_characters().tolist() == [1, 1, 1, 1, 1, 1, 1, 2, 3]


def test_control_token_spelled_in_text_is_text(tmp_path) -> None:
    tokenizer = Tokenizer.load(_write(tmp_path))
    assert tokenizer.encode("<unk>") == [0] * 5  # < u n k >, each unknown


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("vocab.json", "[1", "vocab.json: not JSON"),
        ("vocab.json", "[1]", "vocab.json: expected an object of token: id"),
        ("vocab.json", '{"<unk>": 0, "a</w>": 2}', "the ids are not 0 to 1, each once"),
        ("vocab.json", '{"<unk>": 0, "a": 1}', "no token that ends in </w>: not GPT-1's"),
        ("merges.txt", "#version: 0.2\nt h\nh t\n", "merges.txt:3: 'h t' is not a merge"),
        ("merges.txt", "th\n", "merges.txt:1: 'th' is not a merge"),
    ],
)
def test_damaged_file_is_named_with_what_is_wrong(tmp_path, name, text, message) -> None:
    (_write(tmp_path) / name).write_text(text, encoding="utf-8")
    with pytest.raises(FileError) as raised:
        Tokenizer.load(tmp_path)
    assert message in str(raised.value)


def test_chat_template_beside_vocabulary_and_merges_is_kept(tmp_path) -> None:
    settings = _write(tmp_path) / "tokenizer_config.json"
    settings.write_text(json.dumps({"chat_template": "{{ messages }}"}), encoding="utf-8")
    assert Tokenizer.load(tmp_path).chat_template == "{{ messages }}"


def test_missing_merges_are_named(tmp_path) -> None:
    (_write(tmp_path) / "merges.txt").unlink()
    with pytest.raises(FileError, match=r"merges\.txt: no such file"):
        Tokenizer.load(tmp_path)


def test_kinds_of_byte_pairs_refuse_each_others_files(tmp_path) -> None:
    Tokenizer.train(TEXTS, Config(vocab_size=60)).save(tmp_path / "gpt1")
    bpe.Tokenizer.train(TEXTS, bpe.Config(vocab_size=300)).save(tmp_path / "bytes")
    assert tokenizer_files.load(tmp_path / "gpt1")[0] == "gpt1_bpe"
    assert tokenizer_files.load(tmp_path / "bytes")[0] == "bpe"
    with pytest.raises(FileError, match="words end in </w>, not in no suffix"):
        bpe.Tokenizer.load(tmp_path / "gpt1")
    with pytest.raises(FileError, match="words end in no suffix, not in </w>"):
        Tokenizer.load(tmp_path / "bytes")


def test_training_merges_the_most_frequent_pairs_and_repeats_exactly() -> None:
    made = [Tokenizer.train(TEXTS, Config(vocab_size=48)) for _ in range(3)]
    assert len({tokenizer.fingerprint() for tokenizer in made}) == 1
    tokenizer = made[0]
    letters = sorted(set("".join(TEXTS).lower()) - {" "})
    assert [tokenizer.token(i) for i in range(1 + 2 * len(letters))] == [
        "<unk>", *letters, *(letter + "</w>" for letter in letters)
    ]  # fmt: skip
    # a t</w>: mat, sat (3 times), cat (3), hat, that; no other pair comes so often.
    assert tokenizer.token(1 + 2 * len(letters)) == "at</w>"
    assert tokenizer.decode(tokenizer.encode("that cat sat")) == "that cat sat"


def test_training_keeps_frequent_characters_where_there_is_little_room() -> None:
    tokenizer = Tokenizer.train(TEXTS, Config(vocab_size=16))
    letters = Counter("".join(TEXTS).lower().replace(" ", ""))
    best = sorted(letters, key=lambda c: (-letters[c], c))[:7]
    assert tokenizer.vocab_size <= 16
    assert {tokenizer.token(i) for i in range(1, 8)} == set(best)


def test_pickled_tokenizer_gives_the_same_ids() -> None:
    tokenizer = Tokenizer.train(TEXTS, Config(vocab_size=60))
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.encode("<unk> that mat") == tokenizer.encode("<unk> that mat")


def test_saved_directory_opens_in_transformers_with_equal_ids(tmp_path) -> None:
    tokenizer = Tokenizer.train(TEXTS, Config(vocab_size=60))
    tokenizer.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for text in (*TEXTS[:3], "Thät zebra\tsat\n"):
        assert theirs(text)["input_ids"] == tokenizer.encode(text)
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert theirs.unk_token == "<unk>"
    assert Tokenizer.load(tmp_path).fingerprint() == tokenizer.fingerprint()


def test_directory_that_transformers_saved_loads_with_equal_ids(tmp_path) -> None:
    ids = {token: number for number, token in enumerate(VOCABULARY)}
    theirs = OpenAIGPTTokenizer(vocab=ids, merges=[tuple(m.split()) for m in MERGES])
    theirs.save_pretrained(tmp_path)
    kind, tokenizer = tokenizer_files.load(tmp_path)
    assert kind == "gpt1_bpe"
    for text in ("The th he. X", "the, THE thé", "h\u200bt 中h"):
        assert tokenizer.encode(text) == theirs(text)["input_ids"]


def test_directories_of_every_kind_are_known_by_their_files(tmp_path) -> None:
    for kind in registry.names("tokenizers"):
        assert registry.load("tokenizers", kind).Tokenizer.files
    assert not tokenizer_files.is_there(tmp_path)
    assert tokenizer_files.is_there(_write(tmp_path))


def test_recipe_with_the_path_of_the_files_takes_them(tmp_path) -> None:
    from tests.models.test_gpt import RECIPE

    place = json.dumps(str(_write(tmp_path / "files")))
    text = RECIPE.replace("{kind: bpe, vocab_size: 400, min_frequency: 1}", f"{{path: {place}}}")
    resolved = recipe.load(str(_tiny.write(tmp_path, text=text)))
    part = model_part(resolved)
    text = TrainingText(resolved, [], "all", tmp_path, Callbacks())
    made = build_tokenizer(text, part, tmp_path / "run")
    assert made.vocab_size == len(VOCABULARY)


def _fuzz(count: int) -> list[str]:
    draw = random.Random(0)
    alphabets = [
        "abcdefghijklmnopqrstuvwxyz     ", "ABCxyz'’\".,;:!?-()[] \n\t", "àéîõüßÀÉİıǅſ ",
        "0123456789$%€£ ", "中文字 かなカナ한글 ", "\u200b\u00a0\u00ad\ufeff\u2028\x85\x00\ufffd ",
        "😀🏳️‍🌈e\u0301 ", "<unk></w>\n ",
    ]  # fmt: skip
    made = []
    for _ in range(count):
        pool = "".join(draw.sample(alphabets, draw.randint(1, 4)))
        made.append("".join(draw.choices(pool, k=draw.randint(1, 60))))
    return made


@pytest.mark.real_data
def test_openai_vocabulary_has_its_40478_tokens(openai) -> None:
    assert openai.vocab_size == 40478
    assert (openai.token(0), openai.token(40477)) == ("<unk>", "\n</w>")


@pytest.mark.real_data
def test_ids_of_random_text_equal_transformers(openai, oracle) -> None:
    texts = _fuzz(3000)
    theirs = oracle(texts, split_special_tokens=True)["input_ids"]
    assert openai.encode_batch(texts) == theirs


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("en_task/sst2.dev.jsonl", 500),
        ("en_lm/wikitext2.valid.txt", 2000),
        ("en_lm/c4_demo.jsonl", 300),
        ("en_lm/tinyshakespeare.txt", 20000),
    ],
)
def test_ids_and_text_of_real_english_equal_transformers(openai, oracle, name, least) -> None:
    lines = (REAL_DATA / name).read_text(encoding="utf-8").split("\n")
    if name.endswith("jsonl"):
        rows = [json.loads(line) for line in lines if line]
        texts = [value for row in rows for value in row.values() if isinstance(value, str)]
    else:
        texts = [line for line in lines if line.strip()]
    assert len(texts) >= least
    ids = openai.encode_batch(texts)
    # wikitext writes <unk>, which transformers obeys unless told not to.
    assert ids == oracle(texts, split_special_tokens=True)["input_ids"]
    for row in ids[:50]:
        assert openai.decode(row) == oracle.decode(row, skip_special_tokens=True)


@pytest.mark.real_data
def test_checkpoints_tokenizer_of_openai_opens_in_transformers(openai, oracle, tmp_path) -> None:
    openai.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    texts = [*_fuzz(200), "He didn't say: “naïve café”."]
    assert theirs(texts, split_special_tokens=True)["input_ids"] == openai.encode_batch(texts)
    assert gpt1_bpe.Tokenizer.load(tmp_path).fingerprint() == openai.fingerprint()
