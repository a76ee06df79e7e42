"""`judge --pairs --as NAME` beside the published scripts' formulas, written out with transformers.

Sources: babylm-org/babylm-eval at 45fe2c11 (strict/evaluation_pipeline/sentence_zero_shot), the
same lines as babylm/evaluation-pipeline-2025 at bf55c113; sjtu-compling/ZhoBLiMP at 1122b47f
(eval.py); alexwarstadt/blimp at 0ee32bcd (result_processing/process_simplelm.py).
"""

import json
import math
from pathlib import Path

import pytest
import torch
import transformers

from nlpkit import cli
from nlpkit.errors import UsageError
from nlpkit.evaluate import published_scores
from nlpkit.tokenizers import bpe, wordpiece

PAIRS = [
    ("The unbelievable cats sleep.", "The unbelievable cats sleeps.", "s", "t1", "p0"),
    ("Katherine can't help herself.", "Katherine can't help himself.", "s", "t1", "p0"),
    ("It runs.", "It runs.", "s", "t1", "p0"),
    ("A dog barks, and it runs.", "Dogs barks, and it runs.", "syntax_semantics", "t1", "p1"),
    ("Who should Derek hug?", "Should who Derek hug?", "syntax_semantics", "t2", "p2"),
]
TEXTS = [text for pair in PAIRS for text in pair[:2]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random models in transformers' layout, with tokenizers; and files of pairs."""
    place = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    small = bpe.Tokenizer.train(TEXTS, bpe.Config(vocab_size=300))
    config = transformers.GPT2Config(
        vocab_size=small.vocab_size, n_positions=64, n_embd=32, n_layer=2, n_head=4,
        initializer_range=0.3, eos_token_id=small.eos_id, bos_token_id=small.eos_id,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    for name, dtype in (("gpt", torch.float32), ("half", torch.bfloat16)):
        small.save(place / name)
        model.to(dtype).save_pretrained(place / name)
    pieces = wordpiece.Tokenizer.train(TEXTS, wordpiece.Config(vocab_size=70, min_frequency=1))
    pieces.save(place / "bert")
    bert = transformers.BertConfig(
        vocab_size=pieces.vocab_size, max_position_embeddings=64, hidden_size=32,
        num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, initializer_range=0.3,
    )  # fmt: skip
    transformers.BertForPreTraining(bert).save_pretrained(place / "bert")
    names = ("sentence_good", "sentence_bad", "field", "linguistics_term", "UID")
    rows = [dict(zip(names, pair, strict=True)) for pair in PAIRS]
    _write(place / "pairs.jsonl", rows)
    return place


def _write(file: Path, rows: list[dict[str, str]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _judge(capsys: pytest.CaptureFixture, *given: object) -> tuple[int, str, str]:
    code = cli.run(["judge", *map(str, given)])
    out, err = capsys.readouterr()
    return code, out, err


def _babylm_causal(folder: Path) -> list[float]:
    """`process_causal_sentences` and `compute_causal_results`, a sentence at a time."""
    tokenizer = transformers.AutoProcessor.from_pretrained(folder, padding_side="right")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    scores = []
    for sentence in TEXTS:
        output = tokenizer(text=sentence, return_offsets_mapping=True)
        tokens, offsets = output["input_ids"], output["offset_mapping"]
        start_char_idx = len(sentence) - len(sentence) + offsets[0][0]
        phrase_mask = torch.tensor([int(end > start_char_idx) for _, end in offsets])
        ids = torch.tensor([tokens])
        with torch.no_grad():
            logits = model(input_ids=ids[:, :-1]).logits
        log_probs = torch.log_softmax(logits / 1.0, dim=-1)
        target = torch.gather(log_probs, -1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)
        scores.append(float(torch.sum(target * phrase_mask[1:], dim=1)))
    return scores


def _babylm_mlm(folder: Path) -> list[float]:
    """`process_mlm_sentences` and `compute_mlm_results`, a masked token at a time."""
    tokenizer = transformers.AutoProcessor.from_pretrained(folder, padding_side="right")
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    scores = []
    for sentence in TEXTS:
        output = tokenizer(text=sentence, return_offsets_mapping=True)
        found = []
        for i, (_, end) in enumerate(output["offset_mapping"]):
            if end > 0:
                ids = torch.tensor([output["input_ids"]])
                ids[0, i] = tokenizer.mask_token_id
                with torch.no_grad():
                    logits = model(input_ids=ids).logits[0, i]
                found.append(torch.log_softmax(logits, -1)[output["input_ids"][i]])
        scores.append(float(torch.sum(torch.stack(found))))
    return scores


def _babylm_average(scores: list[float]) -> tuple[dict[str, float], float]:
    """`rank_and_evaluate` (the first of equals is chosen) and `process_results`."""
    correct: dict[str, list[bool]] = {}
    for pair, good, bad in zip(PAIRS, scores[::2], scores[1::2], strict=True):
        chosen = int(torch.max(torch.tensor([good, bad]), dim=0)[1])
        for value in {"field": pair[2].replace("_", "/"), "term": pair[3], "UID": pair[4]}.items():
            correct.setdefault(f"{value[0]} {value[1]}", []).append(chosen == 0)
    accuracies = {name: 100.0 * sum(each) / len(each) for name, each in correct.items()}
    uids = [value for name, value in accuracies.items() if name.startswith("UID")]
    return accuracies, sum(uids) / len(uids)


def _zhoblimp(folder: Path) -> dict[str, float]:
    """`get_sentence_metrics` and `eval`, in float16."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16).eval()
    tokenizer.pad_token, tokenizer.padding_side = tokenizer.eos_token, "right"
    found = []
    for side in (TEXTS[::2], TEXTS[1::2]):
        sents = list(side)
        inputs = tokenizer(sents, return_tensors="pt", padding=True)
        if not all(i in tokenizer.all_special_ids for i in inputs.input_ids[:, 0].tolist()):
            sents = [tokenizer.pad_token + s for s in sents]
            inputs = tokenizer(sents, return_tensors="pt", padding=True)
        with torch.no_grad():
            logprobs = model(**inputs).logits[:, :-1].log_softmax(dim=-1)
        labels, mask = inputs.input_ids[:, 1:], inputs.attention_mask[:, 1:]
        logprobs = logprobs.gather(dim=-1, index=labels.unsqueeze(-1)).squeeze(-1)
        logprobs = torch.sum(logprobs * mask, dim=1)
        mean_logprobs = logprobs / mask.sum(dim=-1)
        found.append((logprobs, mean_logprobs, torch.exp(-mean_logprobs)))
    (good, good_mean, perplexity), (bad, bad_mean, _) = [
        [values.tolist() for values in side] for side in found
    ]
    count = len(PAIRS)
    return {
        "LP": sum(g > b for g, b in zip(good, bad, strict=True)) / count,
        "meanLP": sum(g > b for g, b in zip(good_mean, bad_mean, strict=True)) / count,
        "PPL": sum(perplexity) / count,
        "ties": sum(g == b for g, b in zip(good, bad, strict=True)),
    }


@pytest.mark.parametrize("name", ["gpt", "half", "bert"])
def test_babylm_is_what_its_script_prints(
    folder: Path, capsys: pytest.CaptureFixture, name: str
) -> None:
    scores = _babylm_mlm(folder / name) if name == "bert" else _babylm_causal(folder / name)
    accuracies, average = _babylm_average(scores)
    given = [folder / name, "--pairs", folder / "pairs.jsonl", "--as", "babylm-2026"]
    code, out, err = _judge(capsys, *given)
    assert code == 0, err
    lines = [line.split() for line in out.splitlines()]
    printed = {line[0]: line[-1] for line in lines if line}
    for uid in ("p0", "p1", "p2"):
        assert printed[uid] == f"{accuracies[f'UID {uid}']:.2f}"
    assert printed["all"] == f"{average:.2f}"
    assert f"babylm-2026 field syntax/semantics: {accuracies['field syntax/semantics']:.2f}" in out
    assert f"babylm-2026 linguistics_term t1: {accuracies['term t1']:.2f}" in out
    assert "a tie counts as right, not as half" in out
    assert ("bfloat16" in out) == (name == "half")
    stands = "begins with a special token" if name == "bert" else "2 pairs differ in it"
    assert stands in out


def test_paradigm_called_all_has_its_own_figure(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    accuracies, average = _babylm_average(_babylm_causal(folder / "gpt"))
    pairs = (folder / "pairs.jsonl").read_text(encoding="utf-8").replace('"p0"', '"all"')
    (tmp_path / "pairs.jsonl").write_text(pairs, encoding="utf-8")
    given = [folder / "gpt", "--pairs", tmp_path / "pairs.jsonl", "--as", "babylm-2026"]
    code, out, err = _judge(capsys, *given)
    assert code == 0, err
    found = [line.split()[-1] for line in out.splitlines() if line.startswith("all ")]
    assert found == [f"{accuracies['UID p0']:.2f}", f"{average:.2f}"]
    assert found[0] != found[1]


def test_zhoblimp_is_what_its_script_prints(folder: Path, capsys: pytest.CaptureFixture) -> None:
    expected = _zhoblimp(folder / "gpt")
    code, out, err = _judge(
        capsys, folder / "gpt", "--pairs", folder / "pairs.jsonl", "--as", "zhoblimp", "--json"
    )
    assert code == 0, err
    found = json.loads(out)["as"]
    assert found["accuracy"] == expected["LP"]
    assert found["meanLP"] == expected["meanLP"]
    assert math.isclose(found["PPL"], expected["PPL"], rel_tol=1e-6)
    assert (found["ties"], found["dtype"]) == (expected["ties"], "float16")
    assert expected["ties"] >= 1  # the same sentence twice counts as wrong


def test_blimp_counts_our_scores_as_its_repository_does(
    folder: Path, capsys: pytest.CaptureFixture
) -> None:
    rows = folder / "rows.jsonl"
    code, out, err = _judge(
        capsys, folder / "gpt", "--pairs", folder / "pairs.jsonl", "--as", "blimp", "--json",
        "--predictions", rows,
    )  # fmt: skip
    assert code == 0, err
    found = json.loads(out)["as"]
    written = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
    right = [row["good"] > row["bad"] for row in written]
    uids = [sum(right[:3]) / 3, float(right[3]), float(right[4])]
    assert found["accuracy"] == pytest.approx(sum(uids) / 3)
    assert found["groups"]["linguistics_term"]["t1"] == pytest.approx((uids[0] + uids[1]) / 2)


@pytest.mark.parametrize(
    ("model", "arguments", "code", "said"),
    [
        ("gpt", ["--as", "babylm-2031"], 2, "babylm-2031"),
        ("bert", ["--as", "zhoblimp"], 2, "the script scores by log-probability, not pll"),
        ("gpt", ["--pairs", "FOLDER/term.jsonl", "--as", "blimp"], 3, "term.jsonl:1: no "),
        ("gpt", ["--pairs", "FOLDER/term.jsonl", "--as", "babylm-2026"], 3, '"field" without'),
        ("gpt", ["--pairs", "FOLDER/none.jsonl", "--as", "blimp"], 3, "none.jsonl: empty file"),
        ("gpt", ["--pairs", "FOLDER/long.jsonl", "--as", "zhoblimp"], 3, "long.jsonl:1:good: "),
        ("bert", ["--pairs", "FOLDER/long.jsonl", "--as", "babylm-2026"], 3, "; the model takes "),
    ],
)
def test_as_refuses_in_one_line(
    folder: Path,
    capsys: pytest.CaptureFixture,
    model: str,
    arguments: list[str],
    code: int,
    said: str,
) -> None:
    _write(
        folder / "term.jsonl", [{"sentence_good": "It runs.", "sentence_bad": "It.", "field": "s"}]
    )
    _write(folder / "none.jsonl", [])
    long = {"sentence_good": "It runs. " * 300, "sentence_bad": "It.", "field": "s"}
    _write(folder / "long.jsonl", [{**long, "linguistics_term": "t"}])
    given = [each.replace("FOLDER", str(folder)) for each in arguments]
    pairs = [] if "--pairs" in given else ["--pairs", folder / "pairs.jsonl"]
    found, out, err = _judge(capsys, folder / model, *pairs, *given)
    assert (found, out) == (code, "")
    assert said in err.splitlines()[-1]


def test_adapters_are_to_be_merged_before_a_script_opens_them(folder: Path, tmp_path: Path) -> None:
    for name, text in (
        ("config", (folder / "gpt/config.json").read_text()),
        ("adapter_config", "{}"),
    ):
        (tmp_path / f"{name}.json").write_text(text)
    with pytest.raises(UsageError, match=f"; merge its adapters: nlpkit convert {tmp_path} DIR"):
        published_scores.open_checkpoint(
            "AutoModelForCausalLM", tmp_path, torch.device("cpu"), None, lambda: None
        )


def test_as_needs_pairs(capsys: pytest.CaptureFixture) -> None:
    code, _, err = _judge(capsys, "x", "y.txt", "--surprisal", "z.tsv", "--as", "blimp")
    assert (code, err.splitlines()[-1]) == (2, "nlpkit: --as blimp: needs --pairs")
