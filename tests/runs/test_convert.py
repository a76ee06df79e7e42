"""`nlpkit convert`: what it writes opens in transformers and in ours; mistakes are one line."""

import errno
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from nlpkit import cli, disk
from nlpkit.checkpoints import any_layout, hf_layout, peft_layout
from nlpkit.errors import FileError, UsageError
from nlpkit.runs.convert import Options, convert
from nlpkit.runs.open_checkpoint import open_checkpoint
from tests import _adapters, _cpm_live, _tiny

FAMILIES = ("cpm_ant", "gpt", "gpt2")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
all_families = pytest.mark.parametrize("family", FAMILIES)


@pytest.mark.fast_cases(3)
@all_families
@pytest.mark.parametrize("precision", DTYPES)
def test_convert_of_adapters_opens_everywhere_in_every_precision(
    family: str, precision: str, tmp_path: Path
) -> None:
    model = _adapters.base(family, tmp_path / "base")
    _adapters.adapted(family, model)
    _adapters.write_adapters(family, model, tmp_path / "ours", tmp_path / "base")
    made = convert(tmp_path / "ours", tmp_path / "out", Options(precision=precision))
    tensors = load_file(tmp_path / "out" / hf_layout.WEIGHTS)
    assert {tensor.dtype for tensor in tensors.values()} == {DTYPES[precision]}
    assert made["precision"] == precision
    assert not (tmp_path / "out" / peft_layout.SETTINGS).exists()
    # One rounding of the merged weights, none before it.
    exact = any_layout.read(tmp_path / "ours")[1]
    for name, tensor in exact.items():
        assert torch.equal(tensors[name], tensor.to(DTYPES[precision])), name
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert theirs.dtype == DTYPES[precision]
    opened = open_checkpoint(tmp_path / "out", precision="fp32")
    with torch.no_grad():
        found, expected = _adapters.logits(opened.model), _adapters.logits(theirs.float())
        exactly = _adapters.logits(model)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)
    # relative precision of the stored numbers, over a few layers
    tolerance = {"fp32": 2e-5, "bf16": 0.05, "fp16": 0.01}[precision]
    assert (found - exactly).norm() < tolerance * exactly.norm()
    assert AutoTokenizer.from_pretrained(tmp_path / "out").vocab_size == len(_adapters.WORDS)


@all_families
def test_convert_without_change_of_precision_is_exact(family: str, tmp_path: Path) -> None:
    _adapters.base(family, tmp_path / "base")
    convert(tmp_path / "base", tmp_path / "half", Options(precision="bf16"))
    made = convert(tmp_path / "half", tmp_path / "again")
    assert made["precision"] == "bf16"
    first, second = (load_file(tmp_path / name / hf_layout.WEIGHTS) for name in ("half", "again"))
    assert first.keys() == second.keys() == load_file(tmp_path / "base" / hf_layout.WEIGHTS).keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert AutoConfig.from_pretrained(tmp_path / "again").dtype == torch.bfloat16


def test_converted_checkpoint_is_evaluated_with_the_seed_of_its_run(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    recipe, run = _tiny.write(tmp_path, documents=30), tmp_path / "run"
    _tiny.pretrain(recipe, run, "seed=7", "train.steps=2", "train.eval_every=2")
    convert(run, tmp_path / "out")
    convert(tmp_path / "out", tmp_path / "again")
    losses = []
    for name in ("run", "out", "again"):
        words = ["eval", str(tmp_path / name), "--data", str(tmp_path / "valid.txt"), "--json"]
        assert cli.run(words) == 0
        losses.append(json.loads(capsys.readouterr().out)["loss"])
    assert len({*losses}) == 1, losses


def test_convert_keeps_what_the_checkpoint_says_of_itself(tmp_path: Path) -> None:
    _adapters.base("gpt", tmp_path / "base")
    settings = json.loads((tmp_path / "base/config.json").read_text())
    settings |= {"problem_type": "regression", "torch_dtype": "float32"}
    (tmp_path / "base/config.json").write_text(json.dumps(settings))
    objective = {"name": "clm", "max_length": 20, "contiguous": True}
    notes = {"objective": objective, "base": "a hash"}
    (tmp_path / "base" / hf_layout.NOTES).write_text(json.dumps(notes))
    convert(tmp_path / "base", tmp_path / "out", Options(precision="bf16"))
    made = json.loads((tmp_path / "out/config.json").read_text())
    assert made["problem_type"] == "regression"
    assert made["dtype"] == "bfloat16"
    assert "torch_dtype" not in made
    notes = json.loads((tmp_path / "out" / hf_layout.NOTES).read_text())
    assert notes["objective"] == objective
    assert "base" not in notes
    assert open_checkpoint(tmp_path / "out").objective.config.max_length == 20


def test_convert_keeps_the_settings_of_generation_in_a_published_config(tmp_path: Path) -> None:
    _adapters.base("gpt2", tmp_path / "base")
    settings = json.loads((tmp_path / "base/config.json").read_text())
    settings |= {"num_beams": 3, "no_repeat_ngram_size": 2, "max_length": 30}
    (tmp_path / "base/config.json").write_text(json.dumps(settings))
    convert(tmp_path / "base", tmp_path / "out")
    convert(tmp_path / "out", tmp_path / "again")
    for name in ("base", "out", "again"):
        found = AutoModelForCausalLM.from_pretrained(tmp_path / name).generation_config
        assert (found.num_beams, found.no_repeat_ngram_size, found.max_length) == (3, 2, 30), name


def test_convert_says_what_has_no_place(tmp_path: Path) -> None:
    _adapters.base("gpt", tmp_path / "base")
    tensors = load_file(tmp_path / "base" / hf_layout.WEIGHTS)
    tensors["multiple_choice_head.summary.weight"] = torch.ones(1, 32)
    save_file(tensors, tmp_path / "base" / hf_layout.WEIGHTS)
    warnings: list[str] = []
    convert(tmp_path / "base", tmp_path / "out", warn=warnings.append)
    (line,) = warnings
    assert line == "unexpected in this model, ignored: multiple_choice_head.summary.weight"


def test_convert_refuses_numbers_beyond_half_precision(tmp_path: Path) -> None:
    _adapters.base("gpt", tmp_path / "base")
    tensors = load_file(tmp_path / "base" / hf_layout.WEIGHTS)
    tensors["transformer.h.1.ln_2.weight"][3] = -7e4
    save_file(tensors, tmp_path / "base" / hf_layout.WEIGHTS)
    with pytest.raises(UsageError) as caught:
        convert(tmp_path / "base", tmp_path / "out", Options(precision="fp16"))
    assert str(caught.value) == (
        "--precision fp16: transformer.h.1.ln_2.weight has 7e+04, above 65504; use bf16"
    )
    assert not (tmp_path / "out").exists()


def test_convert_takes_an_empty_directory_and_no_other(tmp_path: Path) -> None:
    _adapters.base("gpt", tmp_path / "base")
    (tmp_path / "empty").mkdir()
    convert(tmp_path / "base", tmp_path / "empty")
    assert (tmp_path / "empty" / hf_layout.WEIGHTS).is_file()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("empty", "file", "link"):
        with pytest.raises(UsageError) as caught:
            convert(tmp_path / "base", tmp_path / name)
        assert str(caught.value) == (
            f"{tmp_path / name}: exists already; give a new or empty directory"
        )
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("name", ["mkdir", "sync", "rename"])
def test_convert_leaves_nothing_where_the_disk_is_full(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _adapters.base("gpt", tmp_path / "base")

    def full(*_, **__) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    owner = disk if name == "sync" else Path
    monkeypatch.setattr(owner, name, full)
    with pytest.raises(FileError) as caught:
        convert(tmp_path / "base", tmp_path / "out")
    assert str(caught.value) == f"{tmp_path / 'out'}: cannot be written: no space left on the disk"
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


def test_convert_of_a_release_takes_config_and_vocabulary_from_elsewhere(tmp_path: Path) -> None:
    sizes = _cpm_live.SIZES
    tokens = [*_adapters.WORDS, *"零一二三四五六七八九十"][: sizes["vocab_size"]]
    state = _cpm_live.weights(sizes)
    released = _cpm_live.release(tmp_path / "release", state, sizes, tokens)
    (tmp_path / "elsewhere").mkdir()
    weights = released.rename(tmp_path / "elsewhere" / "model.pt")
    out = tmp_path / "out"
    with pytest.raises(FileError, match=r"settings, model.json, in the same directory.*--config"):
        convert(weights, out)
    config = tmp_path / "release/cpm-ant-tiny.json"
    with pytest.raises(FileError, match="no tokenizer here"):
        convert(weights, out, Options(config=config))
    vocabulary = (tmp_path / "release/vocab.txt").rename(tmp_path / "ant.txt")
    made = convert(weights, out, Options(config=config, vocabulary=vocabulary, precision="bf16"))
    assert made["source"] == str(weights)
    expected = state["encoder.layers.0.ffn.ffn.w_out.weight"].div(48**0.5).bfloat16()
    found = load_file(out / hf_layout.WEIGHTS)["cpmant.encoder.layers.0.ffn.ffn.w_out.weight"]
    assert torch.equal(found, expected)
    assert open_checkpoint(out).tokenizer.token(60) == tokens[60]
    short = tmp_path / "short.txt"
    short.write_text("\n".join(tokens[:-1]), encoding="utf-8")
    with pytest.raises(FileError) as caught:
        convert(weights, tmp_path / "no", Options(config=config, vocabulary=short))
    assert str(caught.value) == (
        f"{weights}: the model has 61 tokens and the tokenizer {short} has 60"
    )
    with pytest.raises(UsageError, match=r"--config: .* is not an original release"):
        convert(out, tmp_path / "no", Options(config=config))


def test_convert_prints_the_directory_or_one_object(tmp_path: Path) -> None:
    _adapters.base("cpm_ant", tmp_path / "base")
    result = _tiny.command("convert", tmp_path / "base", tmp_path / "a b 天")
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{tmp_path}/a b 天\n"
    assert "parameters in fp32" in result.stderr
    assert f"hf upload 'USER/a b 天' '{tmp_path}/a b 天' ." in result.stderr
    result = _tiny.command(
        "convert", tmp_path / "base", tmp_path / "out", "--precision", "bf16", "--json", "-q"
    )
    made = json.loads(result.stdout)
    assert result.stderr == ""
    assert made == {
        "checkpoint": str(tmp_path / "out"),
        "source": str(tmp_path / "base"),
        "family": "cpm_ant",
        "precision": "bf16",
        # 58 words, 20 prompts, 4 segments of 32; 48 x 4; 2 x (4 x 32^2 + 3 x 32 x 48 + 64); 32
        "parameters": (len(_adapters.WORDS) + 24) * 32 + 192 + 2 * (4096 + 4608 + 64) + 32,
        "bytes": (tmp_path / "out" / hf_layout.WEIGHTS).stat().st_size,
        "files": 1,
        "upload": f"hf upload USER/out {tmp_path}/out .",
    }
    result = _tiny.command("convert", tmp_path / "nothing", tmp_path / "x")
    assert result.returncode == 4
    assert result.stderr.startswith(f"nlpkit: {tmp_path}/nothing: no such directory")
    result = _tiny.command("convert", tmp_path / "base", tmp_path / "out")
    assert result.returncode == 2
    result = _tiny.command("convert", tmp_path / "base", tmp_path / "x", "--precision", "int8")
    assert result.returncode == 2


@pytest.mark.fast_cases(1)
@all_families
def test_average_is_the_mean_of_the_weights(family: str, tmp_path: Path) -> None:
    for number in range(3):
        torch.manual_seed(number)
        _adapters.base(family, tmp_path / str(number))
    states = [load_file(tmp_path / str(n) / hf_layout.WEIGHTS) for n in range(3)]
    result = _tiny.command("convert", "--average", *(tmp_path / n for n in "012"), tmp_path / "out")
    assert result.returncode == 0, result.stderr
    mean = load_file(tmp_path / "out" / hf_layout.WEIGHTS)
    assert mean.keys() == states[0].keys()
    differ = 0
    for name, tensor in mean.items():
        each = torch.stack([state[name] for state in states]).double()
        torch.testing.assert_close(tensor.double(), each.mean(0), atol=1e-7, rtol=1e-6)
        differ += not torch.equal(each[0], each[1])
    assert differ >= 5  # the three models are not the same one
    AutoModelForCausalLM.from_pretrained(tmp_path / "out")


def test_average_takes_what_other_versions_of_transformers_wrote(tmp_path: Path) -> None:
    _adapters.base("gpt2", tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    config = tmp_path / "two/config.json"
    written = {"transformers_version": "4.1.0", "_name_or_path": "somewhere"}
    config.write_text(json.dumps(json.loads(config.read_text()) | written))
    convert(tmp_path / "one", tmp_path / "out", Options(average=[tmp_path / "two"]))
    assert (tmp_path / "out" / hf_layout.WEIGHTS).is_file()


def test_average_of_different_models_is_refused(tmp_path: Path) -> None:
    for family in ("gpt", "gpt2"):
        _adapters.base(family, tmp_path / family)
    with pytest.raises(FileError, match=r"gpt2: not the model of .*gpt: .* differs"):
        convert(tmp_path / "gpt", tmp_path / "out", Options(average=[tmp_path / "gpt2"]))
    assert not (tmp_path / "out").exists()
    for sets, needed in (
        (["--average", tmp_path / "gpt", tmp_path / "x"], "at least two checkpoints"),
        ([tmp_path / "gpt", tmp_path / "gpt", tmp_path / "x"], "--average"),
    ):
        result = _tiny.command("convert", *sets)
        assert result.returncode == 2
        assert needed in result.stderr
