"""Pictures of self-attention: a page and a PNG, of a sentence and of a held-out example."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from nlpkit.report.figures import Layer
from tests import _tiny

SENTENCE = "the cat sat on the mat"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attention")
    done = _tiny.command("pretrain", _tiny.write(folder), "--out", folder / "run", "-q")
    assert done.returncode == 0, done.stderr
    return folder / "run"


def _layers(page: Path) -> list[dict]:
    found = re.search(r"^const layers = (.*);$", page.read_text("utf-8"), re.MULTILINE)
    assert found
    return json.loads(found[1])


def test_page_has_the_weights_and_entropies_of_each_head_of_a_sentence(run: Path, tmp_path) -> None:
    page = tmp_path / "a.html"
    done = _tiny.command("eval", run, "--attention", page, "--sentence", SENTENCE, "-q")
    assert done.returncode == 0, done.stderr
    layers = _layers(page)
    assert [layer["title"] for layer in layers] == [f"layer {n + 1}" for n in range(len(layers))]
    for layer in layers:
        weights = np.array(layer["weights"])
        assert weights.shape[1:] == (len(layer["queries"]), len(layer["keys"]))
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-2)
        logs = np.log(np.where(weights > 0, weights, 1))
        entropies = -(weights * logs).sum(-1).mean(-1)
        np.testing.assert_allclose(layer["entropies"], entropies, atol=1e-2)


@pytest.mark.slow
def test_one_layer_of_a_held_out_example_is_drawn_as_png(run: Path, tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    done = _tiny.command("eval", run, "--attention", picture, "--attention-layer", "1", "-q")
    assert done.returncode == 0, done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--attention", "a.html", "--attention-layer", "9"), "--attention-layer 9: the layers"),
        (("--attention", "a.html", "--sentence", "cat " * 99), "--sentence: has "),
        (("--attention", "a.html", "--sentence", ""), "--sentence: has 0 tokens"),
        (("--sentence", SENTENCE), "--sentence: needs --attention FILE"),
    ],
)
def test_what_cannot_be_drawn_is_said(run: Path, tmp_path: Path, arguments, said: str) -> None:
    done = _tiny.command("eval", run, *arguments, "-q", cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / "a.html").exists()


def test_entropy_of_a_head_is_that_of_its_rows() -> None:
    weights = np.stack([np.full((2, 4), 0.25), np.eye(2, 4)])
    found = Layer("layer 1", weights, [], []).entropies
    np.testing.assert_allclose(found, [math.log(4), 0])


@pytest.mark.slow
def test_sentence_is_the_source_of_an_encoder_decoder(tmp_path: Path) -> None:
    sizes = ("hidden_size=16", "intermediate_size=16", "num_layers=1", "num_heads=2")
    sets = [word for size in sizes for word in ("--set", f"model.{size}")]
    sets += ["--set", "train.steps=1", "--set", "train.warmup_steps=0"]
    done = _tiny.command("pretrain", "transformer", *sets, "--out", tmp_path / "run", "-q")
    assert done.returncode == 0, done.stderr
    page = tmp_path / "a.html"
    done = _tiny.command("eval", tmp_path / "run", "--attention", page, "--sentence", "你好", "-q")
    assert done.returncode == 0, done.stderr
    titles = ["encoder layer 1", "decoder layer 1", "cross attention of decoder layer 1"]
    assert [layer["title"] for layer in _layers(page)] == titles
    encoder, _, cross = _layers(page)
    assert encoder["queries"] == encoder["keys"] == cross["keys"]
    assert len(cross["queries"]) == 1
    png = tmp_path / "a.png"
    given = ("eval", tmp_path / "run", "--attention", png, "-q", "--sentence")
    done = _tiny.command(*given, "你好")
    assert done.returncode == 0, done.stderr
    assert png.stat().st_size > 1000
    for text, said in (("你好" * 99, "at most 48 can be labelled"), ("", "the source is empty")):
        done = _tiny.command(*given, text)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "--sentence: " in done.stderr
        assert said in done.stderr
