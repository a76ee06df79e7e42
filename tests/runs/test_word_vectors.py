"""Vectors of word2vec: the text that gensim reads, and the embeddings of another family."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from nlpkit import cli
from nlpkit.checkpoints import files, tokenizer_files
from nlpkit.runs import word_vectors
from tests import _tiny
from tests.objectives.test_word2vec import RECIPE

GPT2 = RECIPE.replace(
    "{family: word2vec, hidden_size: 16}",
    "{family: gpt2, hidden_size: 16, num_layers: 1, num_heads: 2}",
).replace(
    "{name: word2vec, max_length: 48, sample: 0.01, window: 3}", "{name: clm, max_length: 48}"
)
GPT2 = GPT2.replace("tokenizer: {kind: bpe, vocab_size: 400}\n", "init_from: VECTORS\n")


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors")
    _tiny.pretrain(_tiny.write(folder, text=RECIPE), folder / "run")
    return files.checkpoint_path(folder / "run", 12)


def _read_as_gensim(path: Path) -> dict[str, np.ndarray]:
    """As gensim 4.3, models/keyedvectors.py: _word2vec_read_text, _word2vec_line_to_vector."""
    with path.open("rb") as file:
        size, width = (int(number) for number in file.readline().decode().split())
        found = {}
        for _ in range(size):
            word, *numbers = file.readline().decode().rstrip().split(" ")
            assert len(numbers) == width
            found[word] = np.array(numbers, np.float32)
    assert len(found) == size
    return found


def test_text_of_vectors_is_read_back_exactly(
    vectors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "vectors.txt"
    assert cli.run(["convert", str(vectors), str(out), "--to", "word2vec"]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    table = load_file(vectors / "model.safetensors")["token_embedding"]
    tokenizer = tokenizer_files.load(vectors)[1]
    found = _read_as_gensim(out)
    assert [*found] == [tokenizer.token(number) for number in range(len(table))]
    assert np.array_equal(np.stack([*found.values()]), table.numpy())
    assert cli.run(["convert", str(vectors), str(out), "--to", "word2vec"]) != 0
    assert "exists already" in capsys.readouterr().err
    more = ["--to", "word2vec", "--precision", "bf16"]
    assert cli.run(["convert", str(vectors), str(tmp_path / "new.txt"), *more]) != 0
    assert not (tmp_path / "new.txt").exists()


def test_white_space_in_a_token_is_replaced(
    vectors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer: Any = tokenizer_files.load(vectors)[1]
    names = {5: "New York", 6: "a\n"}
    own = type(tokenizer).token
    monkeypatch.setattr(type(tokenizer), "token", lambda t, n: names.get(n) or own(t, n))
    said: list[str] = []
    word_vectors.write_text(vectors, tmp_path / "out.txt", warn=said.append)
    assert [*_read_as_gensim(tmp_path / "out.txt")][5:7] == ["New▁York", "a▁"]
    assert said == [f"2 tokens have white space, which is ▁ in {tmp_path}/out.txt"]


def test_vectors_are_the_embeddings_of_another_family(
    vectors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = _tiny.write(tmp_path, text=GPT2.replace("VECTORS", str(vectors)))
    run = tmp_path / "run"
    few = ["--set", "train.steps=1", "--set", "train.warmup_steps=0", "--set", "train.lr=1e-9"]
    options = ["--out", str(run), "--device", "cpu", "--set", "train.schedule=constant"]
    assert cli.run(["pretrain", str(recipe), *options, *few]) == 0
    assert f"{vectors}: word2vec: its vectors are the token embeddings" in capsys.readouterr().err
    old = load_file(vectors / "model.safetensors")["token_embedding"]
    new = load_file(files.checkpoint_path(run, 1) / "model.safetensors")
    torch.testing.assert_close(new["transformer.wte.weight"], old, atol=1e-6, rtol=0)
    # The run's own checkpoint goes on as a gpt2.
    more = ["--set", "train.steps=3", "--set", "train.warmup_steps=0", "--allow-change"]
    assert cli.run(["pretrain", str(recipe), *options, *more]) == 0
    assert "its vectors are" not in capsys.readouterr().err
    wide = ["--set", "model.hidden_size=32", "--out", str(tmp_path / "wide")]
    assert cli.run(["pretrain", str(recipe), "--device", "cpu", *wide]) != 0
    assert "16 wide, and the token embeddings of the section model 32" in capsys.readouterr().err
