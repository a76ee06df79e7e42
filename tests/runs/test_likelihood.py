"""Log-probabilities of texts, minimal pairs, surprisal.

Oracles: plain loops over sentences with transformers; for CPM-Ant the plain form of CPM-Live's own
code (`_cpm_live`).
"""

import csv
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from scipy.stats import binomtest

from nlpkit import cli
from nlpkit.errors import DataError
from nlpkit.evaluate import surprisal
from nlpkit.runs import pairs
from nlpkit.runs.likelihood import Encoded, Likelihood
from nlpkit.runs.open_checkpoint import open_checkpoint
from nlpkit.runs.pairs import Pair, Sentence, read_pairs
from nlpkit.tokenizers import bpe, wordpiece
from nlpkit.tokenizers.cpm_ant import SPECIAL_TOKENS
from tests import _cpm_live

BLIMP = Path("/work/shared/data/pairs/blimp")
PAIRS = [
    (
        "Who should Derek hug after shocking Richard?",
        "Who should Derek hug Richard after shocking?",
    ),
    ("Katherine can't help herself.", "Katherine can't help himself."),
    ("The unbelievable cats sleep.", "The unbelievable cats sleeps."),
    ("A dog barks, and it runs.", "A dog bark, and it runs."),
]
TEXTS = [text for pair in PAIRS for text in pair]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random models in transformers' layout, with tokenizers; and a file of pairs."""
    place = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    small = bpe.Tokenizer.train(TEXTS, bpe.Config(vocab_size=330))
    small.save(place / "gpt")
    config = transformers.OpenAIGPTConfig(
        vocab_size=small.vocab_size, n_positions=64, n_embd=32, n_layer=2, n_head=4,
        initializer_range=0.3,
    )  # fmt: skip
    transformers.OpenAIGPTLMHeadModel(config).save_pretrained(place / "gpt")
    pieces = wordpiece.Tokenizer.train(TEXTS, wordpiece.Config(vocab_size=70, min_frequency=1))
    pieces.save(place / "bert")
    bert = transformers.BertConfig(
        vocab_size=pieces.vocab_size, max_position_embeddings=64, hidden_size=32,
        num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, initializer_range=0.3,
    )  # fmt: skip
    transformers.BertForPreTraining(bert).save_pretrained(place / "bert")
    lines = [
        json.dumps({"sentence_good": good, "sentence_bad": bad, "UID": f"p{number // 2}"}) + "\n"
        for number, (good, bad) in enumerate(PAIRS)
    ]
    (place / "pairs.jsonl").write_text("".join(lines), encoding="utf-8")
    return place


def _likelihood(folder: Path, name: str, method: str | None = None, budget: int = 60) -> Likelihood:
    opened = open_checkpoint(folder / name, device="cpu", precision="fp32")
    return Likelihood(opened, method, tokens_per_batch=budget)


def _ours(likelihood: Likelihood, texts: list[str]) -> list[np.ndarray]:
    return likelihood.compute_log_probs(likelihood.encode(texts))


def test_causal_log_probs_equal_transformers_behind_the_end_token(folder: Path) -> None:
    model = transformers.OpenAIGPTLMHeadModel.from_pretrained(folder / "gpt").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "gpt")
    found = _ours(_likelihood(folder, "gpt"), TEXTS)
    for text, ours in zip(TEXTS, found, strict=True):
        ids = torch.tensor([[tokenizer.eos_token_id, *tokenizer(text)["input_ids"]]])
        with torch.no_grad():
            logs = model(ids).logits[0, :-1].log_softmax(-1)
        expected = logs.gather(1, ids[0, 1:, None]).squeeze(1).numpy()
        np.testing.assert_allclose(ours, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("method", ["pll", "pll-word-l2r"])
def test_masked_log_probs_equal_transformers_token_by_token(folder: Path, method: str) -> None:
    model = transformers.BertForMaskedLM.from_pretrained(folder / "bert").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "bert")
    found = _ours(_likelihood(folder, "bert", method), TEXTS)
    split_words = 0
    for text, ours in zip(TEXTS, found, strict=True):
        encoded = tokenizer(text)
        ids, words = encoded["input_ids"], encoded.word_ids()
        expected = []
        for place in range(1, len(ids) - 1):
            masked = list(ids)
            masked[place] = tokenizer.mask_token_id
            # Kauf & Ivanova 2023: and the tokens behind it in its word, as in minicons.
            for other in range(place + 1, len(ids) - 1):
                if method == "pll-word-l2r" and words[other] == words[place]:
                    masked[other] = tokenizer.mask_token_id
                    split_words += 1
            with torch.no_grad():
                logits = model(torch.tensor([masked])).logits[0, place]
            expected.append(float(logits.log_softmax(-1)[ids[place]]))
        np.testing.assert_allclose(ours, expected, atol=1e-4, rtol=0)
    assert (split_words > 0) == (method == "pll-word-l2r")


@pytest.mark.parametrize("method", ["infilling", "infilling-word", "generation"])
def test_cpm_ant_log_probs_equal_the_authors_formula(tmp_path: Path, method: str) -> None:
    tokens = [*SPECIAL_TOKENS, *"天地人山水花鸟", "看见"]
    sizes = {
        "vocab_size": len(tokens), "dim_model": 16, "dim_ff": 24, "num_heads": 2, "dim_head": 8,
        "num_layers": 2, "prompt_types": 4, "prompt_length": 3, "segment_types": 4,
        "position_bias_num_buckets": 32, "position_bias_max_distance": 64, "eps": 1e-6,
    }  # fmt: skip
    sizes |= {key: value for key, value in _cpm_live.SIZES.items() if key not in sizes}
    torch.manual_seed(0)
    state = _cpm_live.weights(sizes)
    _cpm_live.release(tmp_path, state, sizes, tokens)
    opened = open_checkpoint(tmp_path / "cpm-ant-tiny.pt", device="cpu", precision="fp32")
    likelihood = Likelihood(opened, method, tokens_per_batch=40)
    texts = ["天地人看见山水", "花鸟"]
    for text, encoded, ours in zip(
        texts, likelihood.encode(texts), _ours(likelihood, texts), strict=True
    ):
        ids, expected = encoded.ids.tolist(), []
        for place in range(len(ids)):
            word = [n for n, w in enumerate(encoded.words) if w == encoded.words[place]]
            hidden = {"infilling": [place], "infilling-word": word}.get(method, range(len(ids)))
            framed = [opened.tokenizer.bos_id, *ids, opened.tokenizer.eos_id]
            context = torch.ones(len(framed), dtype=torch.bool)
            context[[n + 1 for n in hidden]] = False
            is_writing = method == "generation"
            if is_writing:
                framed, context = framed[:-1], context[:-1]
            logits = _cpm_live.logits(
                state, sizes, block=1 + is_writing, ids=torch.tensor(framed),
                segment=torch.full((len(framed),), 1 + is_writing), context=context,
            )  # fmt: skip
            expected.append(float(logits[place].log_softmax(-1)[ids[place]]))
        np.testing.assert_allclose(ours, expected, atol=1e-4, rtol=1e-4, err_msg=text)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(("name", "method"), [("gpt", None), ("bert", "pll-word-l2r")])
def test_log_probs_are_those_of_a_text_alone_whatever_the_batch(
    folder: Path, name: str, method: str | None
) -> None:
    one = _likelihood(folder, name, method, budget=1)
    alone = [_ours(one, [text])[0] for text in TEXTS]
    for budget in (50, 4096):
        found = _ours(_likelihood(folder, name, method, budget), TEXTS + TEXTS[:2])
        for ours, expected in zip(found, alone + alone[:2], strict=True):
            np.testing.assert_allclose(ours, expected, atol=1e-5, rtol=0)
        # The same text is computed once, so it has the same values bit for bit.
        assert np.array_equal(found[0], found[-2])


def test_log_probs_of_an_answer_are_those_behind_its_prompt(folder: Path) -> None:
    likelihood = _likelihood(folder, "gpt")
    (text,) = likelihood.encode([TEXTS[0]])
    (whole,) = likelihood.compute_log_probs([text])
    answer = Encoded(text.ids, text.words, text.offsets, given=5)
    (found,) = likelihood.compute_log_probs([answer])
    assert np.isnan(found[:5]).all()
    np.testing.assert_allclose(found[5:], whole[5:], atol=1e-5, rtol=0)


def _values(*sums: float) -> pairs.Scores:
    """Return scores of sentences of one token each; equal sums have equal tokens."""
    texts = [SimpleNamespace(ids=np.array([n])) for n, _ in enumerate(sums)]
    return pairs.Scores(texts, [np.array([value]) for value in sums])


def test_pairs_a_tie_counts_half_and_is_counted() -> None:
    made = [Pair(Sentence("a", ""), Sentence("b", ""), "x" if n < 2 else "y", "") for n in range(4)]
    scores = _values(-1.0, -2.0, -3.0, -3.0, -2.0, -1.0, -1.0, -5.0)
    found, rows = pairs.compute_figures(made, scores, pytest.fail)
    # By hand: right, tie, wrong, right.
    assert [row["credit"] for row in rows] == [1.0, 0.5, 0.0, 1.0]
    assert (found["accuracy"], found["pairs"], found["ties"]) == (0.625, 4, 1)
    assert found["paradigms"]["x"]["accuracy"] == 0.75
    assert found["paradigms"]["y"]["accuracy"] == 0.5


@pytest.mark.parametrize(("right", "number"), [(300, 400), (1, 1), (0, 9), (100, 100)])
def test_pairs_half_width_is_that_of_scipy(right: int, number: int) -> None:
    made = [Pair(Sentence("a", ""), Sentence("b", ""), "x", "")] * number
    scores = _values(*[value for n in range(number) for value in (-1.0, -2.0 + 1.5 * (n >= right))])
    found, _ = pairs.compute_figures(made, scores, pytest.fail)
    assert found["accuracy"] == right / number
    low, high = binomtest(right, number).proportion_ci(method="wilson")
    assert found["half_width"] == pytest.approx((high - low) / 2)


def _run(capsys: pytest.CaptureFixture, *arguments: object) -> tuple[int, str, str]:
    code = cli.run([str(each) for each in ("judge", *arguments, "--device", "cpu")])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_judge_pairs_prints_paradigms_all_and_names_identical_pairs(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    file = tmp_path / "more.jsonl"
    same = {"sentence_good": "It runs.", "sentence_bad": "It runs."}
    file.write_text(json.dumps(same) + "\n", encoding="utf-8")
    rows = tmp_path / "rows.jsonl"
    code, out, err = _run(
        capsys, folder / "gpt", "--pairs", folder / "pairs.jsonl", file, "--predictions", rows
    )
    assert code == 0, err
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["paradigm", "pairs", "accuracy", "±", "95%", "ties"]
    assert [(line[0], line[1], line[-1]) for line in lines[1:]] == [
        ("p0", "2", "0"), ("p1", "2", "0"), ("more", "1", "1"), ("all", "5", "1"),
    ]  # fmt: skip
    assert lines[3][2] == "0.5000"
    assert f"1 pair of identical sentences, or of the same tokens: {file}:1" in err
    # The sums are those of transformers: see above.
    sums = [float(values.sum()) for values in _ours(_likelihood(folder, "gpt"), TEXTS)]
    written = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
    found = [row[side] for row in written[:4] for side in ("good", "bad")]
    assert found == pytest.approx(sums, abs=1e-4)
    right = [good > bad for good, bad in zip(sums[::2], sums[1::2], strict=True)]
    assert [row["credit"] for row in written] == [*map(float, right), 0.5]
    code, out, err = _run(
        capsys, folder / "bert", "--json", "-q",
        "--pairs", folder / "pairs.jsonl", "--method", "pll-word-l2r",
    )  # fmt: skip
    assert code == 0, err
    values = json.loads(out)
    assert (values["method"], values["pairs"], values["identical"]) == ("pll-word-l2r", 4, [])
    assert {*values["paradigms"]} == {"p0", "p1"}


def test_judge_pairs_are_in_float32_whatever_the_checkpoint(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    model = transformers.OpenAIGPTLMHeadModel.from_pretrained(folder / "gpt").bfloat16()
    model.save_pretrained(tmp_path / "half")
    shutil.copy(folder / "gpt/tokenizer.json", tmp_path / "half")
    rows = tmp_path / "rows.jsonl"
    code, _, err = _run(
        capsys, tmp_path / "half", "--pairs", folder / "pairs.jsonl", "--predictions", rows
    )
    assert code == 0, err
    wide = model.float().eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "gpt")
    ids = torch.tensor([[tokenizer.eos_token_id, *tokenizer(TEXTS[0])["input_ids"]]])
    with torch.no_grad():
        logs = wide(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])
    first = json.loads(rows.read_text(encoding="utf-8").splitlines()[0])
    assert first["good"] == pytest.approx(float(logs.sum()), abs=1e-4)


def _table(file: Path) -> list[dict[str, str]]:
    with open(file, encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened, delimiter="\t", quoting=csv.QUOTE_NONE))


@pytest.mark.parametrize("name", ["gpt", "bert"])
def test_surprisal_of_words_tokens_and_characters_sums_to_the_sentence(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture, name: str
) -> None:
    texts = [*TEXTS, "  Two  spaces, 天地人 and\ta tab ", "naïve 😀 cats"]
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    file = tmp_path / "s.tsv"
    code, out, err = _run(capsys, folder / name, lines, "--surprisal", file, "--json", "-q")
    assert code == 0, err
    rows = _table(file)
    by_unit: dict[str, dict[str, float]] = {}
    for row in rows:
        sums = by_unit.setdefault(row["unit"], {})
        sums[row["sentence"]] = sums.get(row["sentence"], 0.0) + float(row["surprisal"] or 0)
    assert len(by_unit["sentence"]) == len(texts)
    for unit in ("word", "token", "character"):
        assert by_unit[unit] == pytest.approx(by_unit["sentence"], abs=1e-6)
    words = [
        row["text"] for row in rows if row["sentence"].endswith(":2") and row["unit"] == "word"
    ]
    assert words == ["Who", "should", "Derek", "hug", "Richard", "after", "shocking?"]
    found = json.loads(out)["surprisal"]
    assert found["sentence"]["count"] == len(texts)
    assert found["sentence"]["mean"] == pytest.approx(
        sum(by_unit["sentence"].values()) / len(texts), rel=1e-9
    )


def test_surprisal_of_pieces_of_a_character_adds_up_and_of_a_long_token_is_shared() -> None:
    # Tokens `ab`, two bytes of `é`, and ` c` of the text `abé c`; the first has no context.
    text = Encoded(np.arange(4), np.ones(4), [(0, 2), (2, 3), (2, 3), (3, 5)])
    rows = list(surprisal.compute_rows("abé c", text, np.array([np.nan, 1.0, 2.0, 4.0])))
    assert rows[0] == ("sentence", 0, 5, 7.0)
    assert [row for row in rows if row[0] == "word"] == [("word", 0, 3, 3.0), ("word", 4, 5, 4.0)]
    values = [value for unit, *_, value in rows if unit == "character"]
    assert np.array_equal(values, [np.nan, np.nan, 3.0, 2.0, 2.0], equal_nan=True)


def test_surprisal_cuts_chinese_words_as_jieba_does(folder: Path) -> None:
    text = "我们看见了北京 and cats。"
    encoded = Encoded(np.arange(len(text)), np.ones(1), [(n, n + 1) for n in range(len(text))])
    rows = surprisal.compute_rows(text, encoded, np.ones(len(text)))
    words = [text[start:stop] for unit, start, stop, _ in rows if unit == "word"]
    assert words == ["我们", "看见", "了", "北京", "and", "cats。"]


@pytest.mark.parametrize("name", ["gpt", "bert"])
def test_line_longer_than_the_objective_has_it_is_scored_and_counted(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture, name: str
) -> None:
    objective = {"gpt": "clm", "bert": "mlm"}[name]
    short = Path(shutil.copytree(folder / name, tmp_path / name))
    notes = {"objective": {"name": objective, "max_length": 12}}
    (short / "nlpkit.json").write_text(json.dumps(notes), encoding="utf-8")
    (tmp_path / "texts.txt").write_text(f"A dog barks.\n{TEXTS[0]} {TEXTS[1]}\n", encoding="utf-8")
    written = []
    for model in (folder / name, short):
        arguments = (str(tmp_path / "texts.txt"), "--surprisal", str(tmp_path / "x.tsv"))
        code, _, err = _run(capsys, model, *arguments)
        assert code == 0, err
        written.append((tmp_path / "x.tsv").read_text(encoding="utf-8"))
    assert written[0] == written[1]
    assert "warning: 1 sentence is longer than 1" in err
    (tmp_path / "texts.txt").write_text("A dog barks. " * 40, encoding="utf-8")
    code, _, err = _run(capsys, short, *arguments)
    assert (code, "texts.txt:1: " in err, "; the model takes 6" in err) == (3, True, True)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["FOLDER/pairs.jsonl"], 2, "nothing to do: give --pairs, or --surprisal OUT.tsv"),
        (["--pairs", "FOLDER/none.jsonl"], 4, "no such file: FOLDER/none.jsonl"),
        (["--pairs", "FOLDER/bad.jsonl"], 3, 'FOLDER/bad.jsonl:1: no "sentence_bad"'),
        (["--pairs", "FOLDER/lines.txt"], 2, "FOLDER/lines.txt: pairs are rows of a jsonl, csv or"),
        (["--pairs", "FOLDER/long.jsonl"], 3, "FOLDER/long.jsonl:1:bad: "),
        (["--pairs", "FOLDER/empty.jsonl"], 3, "FOLDER/empty.jsonl:1:good: no tokens"),
        (["--pairs", "FOLDER/pairs.jsonl", "--method", "pll"], 2, "has log-probability"),
        (["--surprisal", "FOLDER/x.tsv"], 2, "missing argument 'FILE…'"),
        (["x.txt", "--surprisal", "x.tsv", "--predictions", "y"], 2, "has the values of all"),
        (
            [
                "--pairs",
                "FOLDER/pairs.jsonl",
                "--surprisal",
                "FOLDER/x",
                "--predictions",
                "FOLDER/x",
            ],
            2,
            "--predictions: is the file of --surprisal",
        ),
        *(
            (
                ["--pairs", read, option, "FOLDER/pairs.jsonl"],
                2,
                "pairs.jsonl: is read here, and would",
            )
            for read in ("FOLDER", "FOLDER/p*.jsonl")
            for option in ("--surprisal", "--predictions")
        ),
    ],
)
def test_judge_refuses_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture, arguments: list[str], code: int, said: str
) -> None:
    (folder / "lines.txt").write_text("a\n", encoding="utf-8")
    for name, row in (
        ("bad", {"sentence_good": "a"}),
        ("long", {"sentence_good": "a", "sentence_bad": "a " * 100}),
        ("empty", {"sentence_good": "", "sentence_bad": "a"}),
    ):
        (folder / f"{name}.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    given = [each.replace("FOLDER", str(folder)) for each in arguments]
    found, out, err = _run(capsys, folder / "gpt", *given)
    assert (found, out) == (code, "")
    assert said.replace("FOLDER", str(folder)) in err.splitlines()[-1]


@pytest.mark.real_data
def test_pairs_of_blimp_are_read_as_published() -> None:
    found = read_pairs([str(BLIMP)])
    assert (len(found), len({pair.paradigm for pair in found})) == (6700, 67)
    first = found[0]
    assert first.paradigm == "adjunct_island"
    assert first.good.text == "Who should Derek hug after shocking Richard?"
    assert first.place == f"{BLIMP}/adjunct_island.jsonl:1"


def test_an_empty_file_of_texts_is_named_beside_one_that_is_not(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("a b\n\nc\n")
    (tmp_path / "none.txt").write_text("")
    files = [str(tmp_path / name) for name in ("one.txt", "none.txt")]
    said: list[str] = []
    read = pairs.read_texts(files[:1], "words", said.append)
    assert said == [f"--text-key: has no effect on files of the format text: {files[0]}"]
    assert read == [Sentence("a b", f"{files[0]}:1"), Sentence("c", f"{files[0]}:3")]
    with pytest.raises(DataError, match=r"none\.txt: empty file"):
        pairs.read_texts(files, None, said.append)
