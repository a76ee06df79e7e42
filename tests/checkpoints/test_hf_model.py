"""A family's table of names in both directions, and checkpoints that hold less, or more."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    CpmAntConfig,
    CpmAntModel,
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    OpenAIGPTConfig,
    OpenAIGPTModel,
)

from nlpkit import recipe
from nlpkit.checkpoints import files, hf_layout, hf_model, hf_writing, integrity
from nlpkit.errors import FileError, UsageError
from nlpkit.models.formats.hf_format import matches, vocabulary_size
from nlpkit.models.formats.rows import resize_embeddings
from nlpkit.runs import build
from nlpkit.runs.build import model_part
from nlpkit.runs.convert import convert
from nlpkit.runs.open_checkpoint import open_checkpoint
from nlpkit.runs.run import ModelPart
from tests import _adapters, _tiny
from tests._families.halves import Config as HalvesConfig
from tests._families.halves.model import Model as Halves
from tests._families.plain import Config as PlainConfig
from tests._formats import from_hf

HALVES, PLAIN = "tests._families.halves", "tests._families.plain"
FAMILIES = ("cpm_ant", "gpt", "gpt2", "llama")
all_families = pytest.mark.parametrize("family", FAMILIES)
# Of `config.json` and `model.safetensors` as they were written by two functions a family, before
# there was a table (nlpkit of 2026-11-21).
WRITTEN = {
    "cpm_ant": (
        "e2c754b31104a6592d559e586361587cd15bb952b000a9138eb2cb845a93ec6e",
        "c945417083a2984065bc81e9632fcea6f8ccf54d2bdf99277196bf2d62ae8bd7",
    ),
    "gpt": (
        "dbe3441e013349fdda2aa0e0c16d3a92ef80d6bb58c91a90c9a1a19ff0a74204",
        "2cd9315101a3f7da7cd5c953b1b361d78f375a08920567c82f7bbafaa6538424",
    ),
}


@pytest.mark.parametrize("family", WRITTEN)
def test_checkpoint_is_written_byte_for_byte_as_ever(family: str, tmp_path: Path) -> None:
    config = _adapters.CONFIGS[family]
    shapes = sorted(_adapters.module(family).Model(config, 44).state_dict().items())
    state = {
        name: (torch.arange(tensor.numel(), dtype=torch.float32) + i).reshape(tensor.shape)
        for i, (name, tensor) in enumerate(shapes)
    }
    hf_writing.write_folders(tmp_path, hf_writing.to_hf(family, config, state))
    names = ("config.json", hf_layout.WEIGHTS)
    found = [hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in names]
    assert tuple(found) == WRITTEN[family]


def _change(directory: Path, drop: tuple[str, ...] = (), **more: torch.Tensor) -> None:
    """Take tensors out of a checkpoint whose names end so, and put others in."""
    tensors = load_file(directory / hf_layout.WEIGHTS)
    kept = {name: tensor for name, tensor in tensors.items() if not name.endswith(drop)}
    save_file(kept | more, directory / hf_layout.WEIGHTS)


def _part(start: Path, *sets: str) -> ModelPart:
    """Return the model's part of a run that begins with `start`."""
    text = (
        f"name: x\ninit_from: {json.dumps(str(start))}\ndata: {{train: [x]}}\n"
        "objective: {name: cpm_ant}\ntrain: {steps: 1, warmup_steps: 1}\n"
    )
    return model_part(recipe.parse(text.encode(), "x.yaml", start, sets))


@all_families
def test_missing_tensor_is_refused_by_name(family: str, tmp_path: Path) -> None:
    _adapters.base(family, tmp_path / "base")
    body, last = {
        "cpm_ant": ("cpmant.encoder.layers", "1.ffn.ffn.w_out.weight"),
        "llama": ("model.layers", "1.post_attention_layernorm.weight"),
    }.get(family, ("transformer.h", "1.ln_2.weight"))
    full = f"{body}.{last}"
    _change(tmp_path / "base", (last,))
    said = f"{tmp_path / 'base'}: 1 tensor is missing: {full}"
    for use in (open_checkpoint, lambda path: convert(path, tmp_path / "out")):
        with pytest.raises(FileError) as caught:
            use(tmp_path / "base")
        assert str(caught.value) == said
    assert not (tmp_path / "out").exists()
    with pytest.raises(FileError) as caught:
        _part(tmp_path / "base")
    example = full.split(".")[-2]
    assert str(caught.value) == (
        f"{said}; to initialize such tensors, name them: init_missing: [{example}]"
    )


def test_many_missing_tensors_are_three_names_and_a_number(tmp_path: Path) -> None:
    _adapters.base("gpt", tmp_path / "base")
    _change(tmp_path / "base", ("c_attn.bias", "ln_1.bias", "c_fc.bias"))
    with pytest.raises(FileError) as caught:
        open_checkpoint(tmp_path / "base")
    assert str(caught.value) == (
        f"{tmp_path / 'base'}: 6 tensors are missing: transformer.h.0.attn.c_attn.bias, "
        "transformer.h.0.ln_1.bias, transformer.h.0.mlp.c_fc.bias and 3 more"
    )


def test_init_missing_draws_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    old = _adapters.base("gpt", tmp_path / "base").state_dict()
    _change(tmp_path / "base", ("ln_1.weight", "ln_1.bias"))
    with pytest.raises(FileError, match=r"2 tensors are missing: \S+0.ln_1.bias, \S+1.ln_1.bias;"):
        _part(tmp_path / "base", "init_missing=[ln_1.weight]")
    part = _part(tmp_path / "base", "init_missing=[ln_1]")
    assert part.warnings == [
        "missing, randomly initialized: transformer.h.0.ln_1.weight, transformer.h.0.ln_1.bias, "
        "transformer.h.1.ln_1.weight and 1 more"
    ]
    new = build.build_model(part, len(_adapters.WORDS), "auto").state_dict()
    assert new.keys() == old.keys()
    for name, tensor in new.items():
        # A fresh norm of GPT-1 has scale 1 and shift 0; the base's are shaken.
        fresh = torch.full_like(tensor, float(name.endswith("weight")))
        assert torch.equal(tensor, fresh if "ln_1" in name else old[name]), name


def test_run_says_what_its_start_lacks_and_holds_beside(tmp_path: Path) -> None:
    _tiny.write(tmp_path)
    _adapters.base("cpm_ant", tmp_path / "base")
    _change(tmp_path / "base", ("layernorm.weight",), **{"qa_outputs.weight": torch.ones(2, 32)})
    path = _adapters.tuning_recipe(tmp_path, tmp_path / "base", "init_missing: [output_layernorm]")
    done = _tiny.command("pretrain", path, "--out", tmp_path / "run", "--set", "train.steps=2")
    assert done.returncode == 0, done.stderr
    said = f"{(tmp_path / 'base').resolve()}: "
    lines = [line.partition(said)[2] for line in done.stderr.splitlines() if said in line]
    assert lines == [
        "missing, randomly initialized: cpmant.encoder.output_layernorm.weight",
        "unexpected in this model, ignored: qa_outputs.weight",
    ]


def test_adapters_on_a_model_that_is_not_whole_are_refused(tmp_path: Path) -> None:
    _adapters.base("gpt", tmp_path / "base")
    _change(tmp_path / "base", ("ln_1.weight",))
    said = r": transformer.h.0.ln_1.weight, \S+; adapters are saved without such tensors; train the"
    with pytest.raises(FileError, match=said):
        _part(tmp_path / "base", "init_missing=[ln_1]", "lora={}")


def test_adapters_on_a_model_without_what_it_need_not_have_are_trained_as_they_open(
    halves: tuple[Halves, Path],
) -> None:
    _, place = halves
    _change(place, ("pooler.dense.weight", "pooler.dense.bias"))
    part = _part(place, "lora={targets: all-linear}")
    assert part.family == HALVES
    assert part.warnings == [
        "missing, set to 0: halves.pooler.dense.weight, halves.pooler.dense.bias"
    ]
    assert {*part.targets} == {"layers.0.out", "layers.1.out"}
    model: Any = build.build_model(part, 6, "auto")
    assert not model.pooler.weight.any()
    assert not model.pooler.bias.any()


def test_init_missing_without_init_from_is_refused(tmp_path: Path) -> None:
    path = _tiny.write(tmp_path)
    with pytest.raises(UsageError, match=r"init_missing: needs init_from; remove it"):
        model_part(recipe.load(str(path), ["init_missing=[pooler]"]))


@all_families
def test_body_alone_is_read_as_transformers_saves_it(family: str, tmp_path: Path) -> None:
    common = {"vocab_size": 30, "initializer_range": 0.3}
    if family == "gpt":
        config: Any = OpenAIGPTConfig(n_embd=16, n_layer=2, n_head=2, n_positions=20, **common)
        theirs: Any = OpenAIGPTModel(config)
        pairs = {"layers.1.ln_2.bias": "h.1.ln_2.bias", "token_embedding": "tokens_embed.weight"}
    elif family == "gpt2":
        config = GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=20, **common)
        theirs = GPT2Model(config)
        pairs = {"final_norm.bias": "ln_f.bias", "token_embedding": "wte.weight"}
    elif family == "llama":
        config = LlamaConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
            tie_word_embeddings=True, **common,
        )  # fmt: skip
        theirs = LlamaModel(config)
        pairs = {"final_norm.weight": "norm.weight", "token_embedding": "embed_tokens.weight"}
    else:
        config = CpmAntConfig(
            hidden_size=16, num_attention_heads=2, dim_head=8, dim_ff=24, num_hidden_layers=2,
            position_bias_num_buckets=32, position_bias_max_distance=40, prompt_types=4,
            prompt_length=5, segment_types=4, **common,
        )  # fmt: skip
        theirs = CpmAntModel(config)
        pairs = {"position_bias": "position_bias.relative_attention_bias"}
    theirs.save_pretrained(tmp_path)
    assert not any(
        name.startswith(("transformer.", "cpmant.", "model.")) for name in theirs.state_dict()
    )
    _, state = from_hf(family, tmp_path)
    for ours, name in pairs.items():
        assert torch.equal(state[ours], theirs.state_dict()[name])
    settings, tensors = hf_layout.read(tmp_path)
    assert hf_model.from_hf(family, tmp_path, settings, tensors).unexpected == ()


def test_unexpected_tensors_are_named_wherever_a_checkpoint_is_read(tmp_path: Path) -> None:
    _adapters.base("gpt", tmp_path / "base")
    beside = {f"lm_head.{i}.weight": torch.ones(2) for i in range(5)}
    _change(tmp_path / "base", **beside)
    said = (
        "unexpected in this model, ignored: lm_head.0.weight, lm_head.1.weight, "
        "lm_head.2.weight and 2 more"
    )
    lines: list[str] = []
    open_checkpoint(tmp_path / "base", warn=lines.append)
    convert(tmp_path / "base", tmp_path / "out", warn=lines.append)
    assert lines == [f"{tmp_path / 'base'}: {said}", said]
    assert _part(tmp_path / "base").warnings == [said]


def test_output_layer_that_is_not_the_table_is_refused(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 24}
    config = LlamaConfig(
        vocab_size=30, num_attention_heads=2, tie_word_embeddings=True, **sizes
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    table = load_file(tmp_path / hf_layout.WEIGHTS)["model.embed_tokens.weight"]
    _change(tmp_path, **{"lm_head.weight": table.clone()})
    from_hf("llama", tmp_path)
    _change(tmp_path, **{"lm_head.weight": table + 1})
    theirs = LlamaForCausalLM.from_pretrained(tmp_path)  # which does not tie them then
    assert torch.equal(theirs.lm_head.weight, table + 1)
    said = "lm_head.weight is not model.embed_tokens.weight; this model has one table for both"
    with pytest.raises(FileError, match=f"does not fit the weights: {re.escape(said)}"):
        from_hf("llama", tmp_path)


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("pooler", "bert.pooler.dense.weight", True),
        ("dense.weight", "bert.pooler.dense.weight", True),
        ("pool", "bert.pooler.dense.weight", False),
        ("pool*", "bert.pooler.dense.weight", True),
        ("layer.1", "bert.layer.11.weight", False),
        ("*", "anything", True),
    ],
)
def test_patterns_are_parts_of_dotted_names(pattern: str, name: str, expected: bool) -> None:
    assert matches([pattern], "ours", name) == expected


@pytest.fixture
def halves(tmp_path: Path) -> tuple[Halves, Path]:
    """A model of two halves, and the directory that it is written to."""
    model = Halves(HalvesConfig(), 6)
    folders = hf_writing.to_hf(HALVES, HalvesConfig(), model.state_dict())
    (tmp_path / "halves").mkdir()
    hf_writing.write_folders(tmp_path / "halves", folders)
    return model, tmp_path / "halves"


def test_family_of_two_folders_is_written_as_two_models(halves: tuple[Halves, Path]) -> None:
    model, place = halves
    state = model.state_dict()
    whole, half = (load_file(place / each / hf_layout.WEIGHTS) for each in ("", "generator"))
    assert sorted(half) == ["head.bias", "head.weight", "words.weight"]
    assert sorted(whole) == [
        "cls.bias", "cls.decoder.weight",
        *(f"halves.layer.{i}.{name}" for i in (0, 1)
          for name in ("dense.out.bias", "dense.out.weight", "query_key.weight")),
        "halves.pooler.dense.bias", "halves.pooler.dense.weight", "halves.words.weight",
    ]  # fmt: skip
    assert torch.equal(half["words.weight"], state["token_embedding"])
    assert torch.equal(whole["cls.decoder.weight"], state["token_embedding"])
    assert torch.equal(whole["halves.layer.1.dense.out.weight"], state["layers.1.out.weight"].T)
    both_parts = torch.cat([state["layers.1.q.weight"], state["layers.1.k.weight"]])
    assert torch.equal(whole["halves.layer.1.query_key.weight"], both_parts)
    settings = [json.loads((place / e / "config.json").read_text()) for e in ("", "generator")]
    assert settings[0] == {
        "architectures": ["Halves"], "model_type": "test-halves", "vocab_size": 6,
        "dtype": "float32", "nlpkit": {"family": HALVES, "folders": ["generator"]},
        "width": 4, "depth": 2, "dropout_p": 0.1,
    }  # fmt: skip
    assert settings[1] == {
        "architectures": ["Half"], "model_type": "test-halves", "vocab_size": 6, "width": 2,
        "dtype": "float32", "depth": 2,
    }  # fmt: skip


def test_family_of_two_folders_comes_back_exactly(halves: tuple[Halves, Path]) -> None:
    model, place = halves
    settings, tensors = hf_layout.read(place)
    tensors["embeddings.position_ids"] = torch.arange(4)  # a buffer of older transformers
    loaded = hf_model.from_hf(HALVES, place, settings, tensors)
    assert loaded.config == HalvesConfig()
    assert (loaded.missing, loaded.unexpected) == ((), ())
    assert loaded.state.keys() == model.state_dict().keys()
    assert all(torch.equal(loaded.state[k], v) for k, v in model.state_dict().items())


def test_folder_that_a_checkpoint_has_not_can_be_drawn_afresh(halves: tuple[Halves, Path]) -> None:
    _, place = halves
    settings, tensors = hf_layout.read(place)
    tensors = {name: tensor for name, tensor in tensors.items() if "generator/" not in name}
    said = r"2 tensors are missing: generator/head.weight, generator/head.bias$"
    with pytest.raises(FileError, match=said):
        hf_model.from_hf(HALVES, place, settings, tensors)
    loaded = hf_model.from_hf(HALVES, place, settings, tensors, allow_missing=["generator"])
    assert loaded.missing == ("generator/head.weight", "generator/head.bias")


def test_checkpoint_of_two_folders_is_guarded_by_its_manifest(tmp_path: Path) -> None:
    folders = hf_writing.to_hf(HALVES, HalvesConfig(), Halves(HalvesConfig(), 6).state_dict())

    def write(directory: Path) -> None:
        hf_writing.write_folders(directory, folders)
        for name in (files.TRAINING, files.OPTIMIZER_STATE):
            (directory / name).write_text("")

    place = files.save(tmp_path, 1, write)
    assert integrity.find_corruption(place) is None
    integrity.verify(place)
    _change(place / "generator", ("bias",))
    assert str(integrity.find_corruption(place)).startswith("generator/model.safetensors has")
    with pytest.raises(FileError, match=r"generator/model.safetensors has 288 bytes, not 396"):
        integrity.verify(place)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a", True), ("a/b.c", True), ("../a", False), ("a/../../b", False), ("/a", False),
        ("a//b", False), ("", False), (".", False), ("a/", False), ("./a", False),
    ],
)  # fmt: skip
def test_names_in_a_manifest_lead_into_the_checkpoint_only(name: str, expected: bool) -> None:
    assert integrity.is_inside(name) == expected


@pytest.mark.parametrize("folder", ["..", "/etc", "a/b", "", 5])
def test_folder_outside_of_the_checkpoint_is_refused(
    halves: tuple[Halves, Path], folder: Any
) -> None:
    _, place = halves
    settings = hf_layout.read_settings(place)
    settings["nlpkit"]["folders"] = [folder]
    hf_writing.write_settings(place, settings)
    with pytest.raises(FileError, match=r"nlpkit.folders is .*; must be names"):
        hf_layout.read(place)


def test_tensor_that_a_family_can_do_without_may_be_missing(halves: tuple[Halves, Path]) -> None:
    _, place = halves
    settings, tensors = hf_layout.read(place)
    bare = {name.removeprefix("halves."): t for name, t in tensors.items() if "pooler" not in name}
    loaded = hf_model.from_hf(HALVES, place, settings, bare)
    assert loaded.missing == ("halves.pooler.dense.weight", "halves.pooler.dense.bias")
    assert loaded.warnings("set to 0") == [
        "missing, set to 0: halves.pooler.dense.weight, halves.pooler.dense.bias"
    ]
    # What is not there is not written either.
    folders = hf_writing.to_hf(HALVES, loaded.config, loaded.state)
    assert not any("pooler" in name for name in folders[""][1])


def test_layers_beyond_those_of_the_settings_are_unexpected(halves: tuple[Halves, Path]) -> None:
    _, place = halves
    settings, tensors = hf_layout.read(place)
    loaded = hf_model.from_hf(HALVES, place, settings | {"depth": 1}, tensors)
    assert loaded.unexpected == tuple(
        f"halves.layer.1.{name}"
        for name in ("dense.out.bias", "dense.out.weight", "query_key.weight")
    )


def test_more_tokens_lengthen_every_table_and_a_bias_by_its_mean() -> None:
    state = {"table": torch.randn(3, 2), "bias": torch.tensor([1.0, 2.0, 6.0]), "x": torch.ones(1)}
    assert vocabulary_size(state, ("bias", "table")) == 3
    found = resize_embeddings(state, ("table", "bias"), 5)
    # (1 + 2 + 6) / 3 = 3 by hand
    assert found["bias"].tolist() == [1.0, 2.0, 6.0, 3.0, 3.0]
    assert found["table"].shape == (5, 2)
    assert torch.equal(found["table"][:3], state["table"])
    assert found["x"] is state["x"]


def test_family_without_a_vocabulary_has_no_tokens_to_count(tmp_path: Path) -> None:
    part = ModelPart(PLAIN, PlainConfig(), None)
    model = build.build_model(part, 1000, "auto")  # whatever tokenizer there is
    state = model.state_dict()
    assert vocabulary_size(state, part.vocabulary) == model.vocab_size == 0
    assert part.new_tokens(1000) == 0
    hf_writing.write_folders(tmp_path, hf_writing.to_hf(PLAIN, PlainConfig(), state))
    assert "vocab_size" not in hf_layout.read_settings(tmp_path)
    config, found = from_hf(PLAIN, tmp_path)
    assert config == PlainConfig()
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())
    again = build.build_model(ModelPart(PLAIN, config, found), 1000, "auto")
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in state.items())


def test_table_of_names_that_lacks_a_parameter_is_found_before_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tests._families.plain import model

    class Larger(model.Model):
        def __init__(self, *arguments: Any):
            super().__init__(*arguments)
            self.extra = torch.nn.Parameter(torch.ones(1))

    monkeypatch.setattr(model, "Model", Larger)
    with pytest.raises(UsageError, match=rf"family {PLAIN}: FORMAT.names has no row for 'extra'"):
        build.build_model(ModelPart(PLAIN, PlainConfig(), None), 0, "auto")
