"""CPM-Live's own checkpoints against a reference that has the factors at run time."""

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from nlpkit.checkpoints import any_layout, hf_model
from nlpkit.errors import FileError, UsageError
from nlpkit.objectives import cpm_ant as objective_file
from nlpkit.runs.convert import convert
from nlpkit.runs.open_checkpoint import open_checkpoint
from tests import _adapters, _cpm_live, _tiny
from tests._cpm_live import SIZES
from tests._losses import loss_of, only_term

TOKENS = [*_adapters.WORDS, *"零一二三四五六七八九十"][: SIZES["vocab_size"]]


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    return _cpm_live.weights(SIZES)


@pytest.fixture
def released(tmp_path: Path, state) -> Path:
    assert len(set(TOKENS)) == SIZES["vocab_size"]
    return _cpm_live.release(tmp_path / "release", state, SIZES, TOKENS)


@pytest.mark.parametrize(("task", "block"), [("generation", 2), ("infilling", 1)])
def test_original_logits_equal_the_reference_with_factors_at_run_time(
    task: str, block: int, released: Path, state
) -> None:
    # The original pretrained infilling with prompt 1 and segment 1, generation with 2 and 2.
    opened = open_checkpoint(released)
    ids = torch.randint(10, SIZES["vocab_size"], (50,))
    context = torch.rand(50) < 0.6 if task == "infilling" else torch.arange(50) < 30
    size = SIZES["prompt_length"]
    ours = getattr(opened.model.config.prompts, task)
    number = {"generation": 2, "infilling": 1}[task]
    prompt = SIZES["vocab_size"] + ours * size + torch.arange(size)
    hidden = opened.model(
        (size + 50,),
        input_ids=torch.cat([prompt, ids]),
        segment=torch.tensor([0] * size + [number] * 50),
        position=torch.arange(size + 50),
        context=torch.cat([torch.ones(size, dtype=torch.bool), context]),
    )
    expected = _cpm_live.logits(
        state, SIZES, block=block, ids=ids, segment=torch.full((50,), number), context=context
    )
    assert expected.std() > 0.3
    torch.testing.assert_close(opened.model.logits(hidden)[size:], expected, atol=1e-5, rtol=1e-5)


def test_original_converted_opens_in_transformers_with_equal_logits(
    released: Path, state, tmp_path: Path
) -> None:
    made = convert(released, tmp_path / "out")
    # 61 words, 20 prompts, 4 segments of 32; 48 x 4 biases; 2 x (4 x 32^2 + 3 x 32 x 48 + 64); 32
    assert made["parameters"] == 85 * 32 + 192 + 2 * (4 * 1024 + 4608 + 64) + 32
    assert made["precision"] == "fp32"
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    ids = torch.randint(10, SIZES["vocab_size"], (30,))
    expected = _cpm_live.logits(
        state, SIZES, block=2, ids=ids, segment=torch.full((30,), 2),
        context=torch.ones(30, dtype=torch.bool),
    )  # fmt: skip
    with torch.no_grad():
        found = theirs(input_ids=ids[None]).logits[0]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_original_gives_the_loss_of_the_reference_in_our_objective(released: Path, state) -> None:
    opened = open_checkpoint(released)
    objective = objective_file.Objective(
        objective_file.Config(max_length=64, min_piece=4, infilling_rate=0.0),
        opened.tokenizer, opened.model.config,
    )  # fmt: skip
    text = opened.tokenizer.encode("天地人山水花鸟鱼虫春夏秋冬日月星云风雨雪")
    example = objective.example(np.array(text), np.random.default_rng(3))
    fields = {name: torch.from_numpy(array) for name, array in example.items()}
    loss = loss_of(objective, opened.model, fields, [len(fields["input_ids"])])
    size = SIZES["prompt_length"]
    expected = _cpm_live.logits(
        state, SIZES, block=2, ids=fields["input_ids"][size:], segment=fields["segment"][size:],
        context=fields["context"][size:],
    )  # fmt: skip
    targets = fields["labels"][size:]
    summed = torch.nn.functional.cross_entropy(expected, targets.long(), reduction="sum")
    torch.testing.assert_close(only_term(loss).loss_sum, summed, atol=1e-4, rtol=1e-5)


def test_original_of_half_precision_is_folded_in_float32(released: Path, state) -> None:
    half = {name: tensor.half() for name, tensor in state.items()}
    torch.save(half, released)
    _, tensors = any_layout.read(released)
    name = "encoder.layers.0.ffn.ffn.w_out.weight"
    expected = half[name].double() / 48**0.5
    assert tensors[f"cpmant.{name}"].dtype == torch.float32
    torch.testing.assert_close(tensors[f"cpmant.{name}"].double(), expected, rtol=2e-7, atol=0)
    name = "position_bias.relative_attention_bias"
    assert torch.equal(tensors[f"cpmant.{name}"], half[name].float())


def test_original_in_the_file_format_of_old_torch_is_read(released: Path, state) -> None:
    # Before torch 1.6 it was no zip archive, which alone can be mapped.
    expected = any_layout.read(released)[1]
    torch.save(state, released, _use_new_zipfile_serialization=False)
    assert not released.read_bytes().startswith(b"PK")
    found = any_layout.read(released)[1]
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_original_prompts_follow_the_words(released: Path, state) -> None:
    _, tensors = any_layout.read(released)
    table = tensors["cpmant.input_embedding.weight"]
    expected = state["prompt_embedding.weight"] / 32**0.5
    assert torch.equal(table[SIZES["vocab_size"] :], expected)
    assert len(table) == SIZES["vocab_size"] + len(expected)


def test_original_whose_prompts_are_in_the_table_of_words_is_the_same_model(
    released: Path, state
) -> None:
    # Later versions of CPM-Live: no prompt_embedding, and "vocab_size": 31744 = 30720 + 32 * 32.
    expected_settings, expected = any_layout.read(released)
    prompts = state.pop("prompt_embedding.weight")
    state["input_embedding.weight"] = torch.cat([state["input_embedding.weight"], prompts])
    torch.save(state, released)
    sizes = SIZES | {"vocab_size": SIZES["vocab_size"] + len(prompts)}
    released.with_suffix(".json").write_text(json.dumps(sizes))
    settings, found = any_layout.read(released)
    assert settings == expected_settings
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_original_is_a_start_of_training(released: Path, tmp_path: Path) -> None:
    _tiny.write(tmp_path)
    path = _adapters.tuning_recipe(tmp_path, released.parent)
    last = _tiny.pretrain(path, tmp_path / "run", "train.lr=1.0e-30", "train.steps=3")
    made, before = any_layout.read(last)[1], any_layout.read(released)[1]
    for name, tensor in before.items():
        # our own prompt numbers are permuted in memory and put back
        torch.testing.assert_close(made[name], tensor, rtol=1e-6, atol=1e-12, msg=name)
    # The recipe names the file itself, too; adapters need what peft can open.
    path = _adapters.tuning_recipe(tmp_path, released, "lora: {}")
    with pytest.raises(UsageError, match=r"not in transformers' layout; convert it first: nlpkit"):
        _tiny.pretrain(path, tmp_path / "lora")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda s: s.pop("input_embedding.weight"), "lacks input_embedding.weight"),
        (lambda s: s.update({"segment_embedding.weight": torch.ones(1, 1).expand(4, 32)}),
         "'segment_embedding.weight' is no plain tensor"),
        (lambda s: s.update({"segment_embedding.weight": torch.ones(4, 32, dtype=torch.long)}),
         "'segment_embedding.weight' is no plain tensor"),
        (lambda s: s.update({3: torch.ones(3)}), "3 is no plain tensor"),
        (lambda s: s.update({"note": "hello"}), "'note' is no plain tensor"),
        (lambda s: s.clear(), "holds dict; a state dict has names and tensors"),
    ],
)  # fmt: skip
def test_original_tensors_that_do_not_fit_are_named(change, named, released: Path, state) -> None:
    change(state)
    torch.save(state, released)
    with pytest.raises(FileError) as caught:
        any_layout.read(released)
    assert str(caught.value).startswith(f"{released}: ")
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"dim_model": None}, "dim_model is None; needs a whole number from 1 on"),
        ({"num_layers": True}, "num_layers is True; needs a whole number"),
        ({"num_layers": 0}, "num_layers is 0; needs a whole number from 1 on"),
        ({"eps": "small"}, "eps is 'small'; needs a number"),
        ({"mask_modules": [[False, True], [False, False]]}, "mask_modules leaves parts"),
    ],
)
def test_original_settings_that_are_wrong_are_named(change, named, released: Path) -> None:
    file = released.with_suffix(".json")
    file.write_text(json.dumps(SIZES | change))
    with pytest.raises(FileError) as caught:
        any_layout.read(released)
    assert str(caught.value).startswith(f"{file}: {named}")


def test_original_with_absurd_sizes_allocates_nothing(released: Path) -> None:
    sizes = SIZES | {"num_layers": 10**9, "vocab_size": 10**12}
    released.with_suffix(".json").write_text(json.dumps(sizes))
    with pytest.raises(FileError, match="num_layers: must be at most 1000"):
        hf_model.from_hf("cpm_ant", released, *any_layout.read(released))


def test_original_without_its_json_is_refused_saying_where_it_should_be(released: Path) -> None:
    released.with_suffix(".json").rename(released.with_name("other.json"))
    any_layout.read(released)  # the only one that has these sizes
    released.with_name("other.json").unlink()
    with pytest.raises(FileError, match=r"settings, cpm-ant-tiny.json, in the same directory"):
        any_layout.read(released)


def test_original_directory_with_two_is_refused_naming_them(released: Path) -> None:
    (released.parent / "cpm-ant-b.pt").write_bytes(released.read_bytes())
    with pytest.raises(FileError, match=r"holds cpm-ant-b.pt, cpm-ant-tiny.pt; name one"):
        open_checkpoint(released.parent)


class _Hostile:
    """Unpickled, it would make a directory."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("form", ["legacy", "zip", "raw", "text", "empty", "cut"])
def test_original_hostile_or_broken_file_is_one_line_and_runs_nothing(
    form: str, released: Path, tmp_path: Path, state
) -> None:
    mark = tmp_path / "executed"
    if form == "raw":
        released.write_bytes(pickle.dumps({"a": _Hostile(mark)}))
    elif form in ("legacy", "zip"):
        state["segment_embedding.weight"] = _Hostile(mark)
        torch.save(state, released, _use_new_zipfile_serialization=form == "zip")
    elif form == "cut":
        released.write_bytes(released.read_bytes()[:2000])
    else:
        released.write_bytes(b"" if form == "empty" else b"not a pickle at all\n")
    with pytest.raises(FileError) as caught:
        open_checkpoint(released)
    assert not mark.exists()
    assert str(caught.value).startswith(
        f"{released}: not a file of tensors alone, and nothing else is opened: "
    )
    assert "\n" not in str(caught.value)
    # torch's own message advises to open it all the same
    assert "weights_only" not in str(caught.value)
    if form in ("legacy", "zip"):
        assert str(caught.value).endswith("opened: it calls posix.mkdir")


def test_original_hostile_file_is_exit_4_and_one_line_on_the_command_line(
    released: Path, tmp_path: Path
) -> None:
    released.write_bytes(pickle.dumps(_Hostile(tmp_path / "executed")))
    result = _tiny.command("convert", released, tmp_path / "out", "-q")
    assert result.returncode == 4
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"nlpkit: {released}: not a file of tensors alone")
    assert not (tmp_path / "executed").exists()
    assert not (tmp_path / "out").exists()


def test_original_flipped_bytes_never_end_in_a_bug(released: Path) -> None:
    # Whatever the bytes: read (flipped in the tensors' data), or one line.
    whole = released.read_bytes()
    messages = []
    for seed in range(60):
        content = bytearray(whole)
        generator = torch.Generator().manual_seed(seed)
        for place in torch.randint(0, len(content), (1 + seed,), generator=generator):
            content[place] ^= 0x41
        released.write_bytes(bytes(content))
        try:
            any_layout.read(released)
        except FileError as error:
            messages.append(str(error))
    assert 20 < len(messages) < 60
    assert all(line.startswith(f"{released}: ") and "\n" not in line for line in messages)
