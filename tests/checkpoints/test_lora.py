"""Low-rank adapters against peft: forward, gradients, files in both directions."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    CpmAntForCausalLM,
    OpenAIGPTForSequenceClassification,
    OpenAIGPTModel,
)

from nlpkit import recipe, registry
from nlpkit.checkpoints import any_layout, hf_layout, hf_model, hf_writing, peft_layout
from nlpkit.errors import FileError, NlpkitError, UsageError
from nlpkit.models import families, gru, lora
from nlpkit.models.adapter_config import Config
from nlpkit.models.lora import in_memory, linear_names, table_layer
from nlpkit.runs import init_from
from nlpkit.runs.convert import Options, convert
from nlpkit.runs.open_checkpoint import open_checkpoint
from nlpkit.runs.run import ModelPart
from nlpkit.tokenizers import bpe
from tests import _adapters, _processes, _tiny, _tiny_tasks
from tests._formats import to_hf

FAMILIES = ("cpm_ant", "gpt", "gpt2", "gpt_neo", "gpt_neox", "llama")
# Those with other names in transformers; the others have theirs in common with these.
YOUNGER = ("deberta_v2", "distilbert", "modernbert", "modernbert_decoder")
all_families = pytest.mark.parametrize("family", FAMILIES)


def _copy_from_peft(ours: torch.nn.Module, theirs: torch.nn.Module, targets: dict) -> None:
    found = get_peft_model_state_dict(theirs)
    assert len(found) == 2 * len(targets)
    with torch.no_grad():
        for name, their_name in targets.items():
            layer = ours.get_submodule(name)
            for matrix in ("lora_A", "lora_B"):
                key = f"base_model.model.{their_name}.{matrix}.weight"
                getattr(layer, matrix).copy_(found[key])


@pytest.mark.parametrize("family", [*FAMILIES, *YOUNGER])
def test_lora_forward_and_gradients_equal_pefts(family: str, tmp_path: Path) -> None:
    ours = _adapters.base(family, tmp_path / "base")
    theirs = _adapters.peft_model(family, tmp_path / "base")
    targets = _adapters.adapted(family, ours)
    assert len(targets) == 4  # 2 layers, 2 targets
    _copy_from_peft(ours, theirs, targets)
    found, expected = _adapters.logits(ours), _adapters.logits(theirs)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    weights = torch.randn_like(found)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    their_gradients = {
        name.replace(".default", ""): p.grad for name, p in theirs.named_parameters()
    }
    for name, their_name in targets.items():
        for matrix in ("lora_A", "lora_B"):
            gradient = getattr(ours.get_submodule(name), matrix).grad
            other = their_gradients[f"base_model.model.{their_name}.{matrix}.weight"]
            assert other.abs().max() > 0
            scale = other.abs().max().item()
            torch.testing.assert_close(gradient, other, atol=2e-5 * scale, rtol=1e-4, msg=name)
    trained = {name for name, p in ours.named_parameters() if p.grad is not None}
    assert trained == {f"{name}.{matrix}" for name in targets for matrix in ("lora_A", "lora_B")}


@all_families
def test_lora_starts_as_the_base_bit_for_bit(family: str, tmp_path: Path) -> None:
    model = _adapters.base(family, tmp_path / "base")
    before = _adapters.logits(model)
    config = Config(rank=4)
    lora.adapt(model, config, lora.find_targets(config, _adapters.module(family), model.config))
    assert torch.equal(_adapters.logits(model), before)


@pytest.mark.parametrize("family", [*FAMILIES, *YOUNGER])
def test_lora_adapters_of_ours_open_in_peft_with_equal_logits(family: str, tmp_path: Path) -> None:
    model = _adapters.base(family, tmp_path / "base")
    before = _adapters.logits(model)
    _adapters.adapted(family, model)
    _adapters.write_adapters(family, model, tmp_path / "ours", tmp_path / "base")
    opened = PeftModel.from_pretrained(
        _adapters.theirs(family, tmp_path / "base"), tmp_path / "ours"
    ).eval()
    # peft finds the very layers: no adapter of its own that the file has not.
    made = get_peft_model_state_dict(opened)
    assert made.keys() == load_file(tmp_path / "ours" / peft_layout.WEIGHTS).keys()
    found = _adapters.logits(opened)
    torch.testing.assert_close(found, _adapters.logits(model), atol=1e-5, rtol=1e-5)
    assert (found - before).abs().max() > 0.1


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("cpm_ant", {}),
        ("cpm_ant", {"use_rslora": True}),
        ("gpt", {}),
        ("gpt", {"use_rslora": True}),
        ("gpt", {"bias": "lora_only"}),  # CPM-Ant has none
        ("gpt2", {"bias": "lora_only"}),
        ("gpt2", {"use_dora": True}),
        ("cpm_ant", {"rank_pattern": {"project_q": 2}}),
    ],
)
def test_lora_adapters_of_peft_open_in_ours_with_equal_logits(
    family: str, settings: dict, tmp_path: Path
) -> None:
    # Neither config.json nor tokenizer of its own: those of the base.
    _adapters.base(family, tmp_path / "base")
    theirs = _adapters.peft_model(family, tmp_path / "base", **settings)
    if "bias" in settings:
        _adapters.randomise(theirs, "base_layer.bias")
    theirs.save_pretrained(tmp_path / "peft")
    assert not (tmp_path / "peft" / "config.json").exists()
    opened = open_checkpoint(tmp_path / "peft")
    assert opened.tokenizer.vocab_size == len(_adapters.WORDS)
    with torch.no_grad():
        found, expected = _adapters.logits(opened.model), _adapters.logits(theirs)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_lora_adapters_of_peft_before_0_4_open(tmp_path: Path) -> None:
    _adapters.base("gpt", tmp_path / "base")
    theirs = _adapters.peft_model("gpt", tmp_path / "base")
    theirs.save_pretrained(tmp_path / "peft")
    file = tmp_path / "peft" / peft_layout.SETTINGS
    settings = json.loads(file.read_text())
    del settings["auto_mapping"], settings["peft_version"]
    file.write_text(json.dumps(settings))
    with torch.no_grad():
        found = _adapters.logits(open_checkpoint(tmp_path / "peft").model)
        torch.testing.assert_close(found, _adapters.logits(theirs), atol=1e-5, rtol=1e-5)


@all_families
def test_lora_merged_equals_unmerged(family: str, tmp_path: Path) -> None:
    model = _adapters.base(family, tmp_path / "base")
    _adapters.adapted(family, model)
    _adapters.write_adapters(family, model, tmp_path / "ours", tmp_path / "base")
    opened = open_checkpoint(tmp_path / "ours")
    assert not any("lora" in name for name, _ in opened.model.named_parameters())
    torch.testing.assert_close(
        _adapters.logits(opened.model), _adapters.logits(model), atol=1e-5, rtol=1e-5
    )


# Encoders and decoders share it; a generator does; images have none.
WITH_TABLE = sorted(_adapters.CONFIGS.keys() - {"bart", "electra", "t5", "transformer", "vit"})


def _table_of_peft(family: str) -> str:
    """Return the name of the layer of the token table in transformers' model."""
    module = _adapters.module(family)
    return table_layer(module.FORMAT, lora.TABLE, _adapters.CONFIGS[family])[lora.TABLE]


def _their_logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        found = model(input_ids=_adapters.IDS[None])
    return getattr(found, "prediction_logits", None) if "prediction_logits" in found else found[0]


@pytest.mark.fast_cases(6)
@pytest.mark.parametrize("family", WITH_TABLE)
def test_lora_table_of_ours_opens_in_peft_with_equal_logits(family: str, tmp_path: Path) -> None:
    model = _adapters.base(family, tmp_path / "base")
    their_base = _adapters.theirs(family, tmp_path / "base")
    before = _their_logits(their_base)
    table = model.token_embedding.detach().clone()
    targets = [lora.TABLE, *_adapters.module(family).LORA_TARGETS]
    _adapters.adapted(family, model, targets=targets)
    assert torch.equal(model.token_embedding, table)
    with torch.no_grad():
        model.get_parameter(lora.name_matrices(lora.TABLE)[lora.TABLE_A]).normal_(std=0.1)
    assert (model.token_embedding - table).abs().max() > 0.1
    _adapters.write_adapters(family, model, tmp_path / "ours", tmp_path / "base", targets=targets)
    opened = PeftModel.from_pretrained(their_base, tmp_path / "ours").eval()
    made = {name for name in get_peft_model_state_dict(opened) if "base_layer" not in name}
    assert made == load_file(tmp_path / "ours" / peft_layout.WEIGHTS).keys()
    read = any_layout.read(tmp_path / "ours")
    state = hf_model.from_hf(family, tmp_path / "ours", *read).state
    torch.testing.assert_close(state[lora.TABLE], model.token_embedding.detach())
    (tmp_path / "merged").mkdir()
    hf_writing.write(tmp_path / "merged", *to_hf(family, _adapters.CONFIGS[family], state))
    found, expected = (
        _their_logits(each) for each in (opened, _adapters.theirs(family, tmp_path / "merged"))
    )
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert (found - before).abs().max() > 0.1


def _peft_of_tied_table(family: str, base: Path) -> torch.nn.Module:
    """Return transformers' model with adapters of peft, the same on the table and the output."""
    names = [*_adapters.TARGETS[family], _table_of_peft(family), "lm_head"]
    model = _adapters.peft_model(family, base, target_modules=names)
    _adapters.randomise(model, "lora_embedding_A")
    table = model.get_submodule(f"base_model.model.{_table_of_peft(family)}")
    output = model.get_submodule("base_model.model.lm_head")
    with torch.no_grad():  # CPM-Ant: the rows of soft prompts have none in ours
        table.lora_embedding_A["default"][:, len(_adapters.WORDS) :] = 0
        output.lora_A["default"].weight.copy_(table.lora_embedding_B["default"].T)
        of_words = table.lora_embedding_A["default"][:, : len(_adapters.WORDS)]
        output.lora_B["default"].weight.copy_(of_words.T)
    return model


@all_families
def test_lora_table_computes_and_learns_as_pefts(family: str, tmp_path: Path) -> None:
    ours = _adapters.base(family, tmp_path / "base")
    theirs = _peft_of_tied_table(family, tmp_path / "base")
    targets = _adapters.adapted(
        family, ours, targets=[*_adapters.TARGETS[family], "token_embedding"]
    )
    size = len(_adapters.WORDS)
    found = get_peft_model_state_dict(theirs)
    with torch.no_grad():
        for layer, their_layer in targets.items():
            for matrix, name in lora.name_matrices(layer).items():
                parameter = ours.get_parameter(name)
                value = found[f"base_model.model.{their_layer}.{matrix}"]
                parameter.copy_(value[:, :size] if matrix == lora.TABLE_A else value)
    logits = _adapters.logits(ours), _adapters.logits(theirs)[:, :size]
    torch.testing.assert_close(*logits, atol=1e-4, rtol=1e-5)
    weights = torch.randn_like(logits[0])
    for each in logits:
        (each * weights).sum().backward()
    gradients = {name.replace(".default", ""): p.grad for name, p in theirs.named_parameters()}
    as_output = {"lora_embedding_A": "lora_B", "lora_embedding_B": "lora_A"}
    for matrix, name in lora.name_matrices(lora.TABLE).items():
        other = gradients[f"base_model.model.{targets[lora.TABLE]}.{matrix}"]
        found = ours.get_parameter(name).grad
        other = other[:, : found.shape[1]]
        other = other + gradients[f"base_model.model.lm_head.{as_output[matrix]}.weight"].T
        scale = other.abs().max().item()
        torch.testing.assert_close(found, other, atol=2e-5 * scale, rtol=1e-4)
    trained = {name for name, p in ours.named_parameters() if p.grad is not None}
    assert trained == {n for layer in targets for n in lora.name_matrices(layer).values()}


@pytest.mark.parametrize("targets", [["wte"], ["lm_head"], ["wte", "lm_head"]])
def test_lora_table_that_is_not_that_of_input_and_output_is_refused(
    targets: list[str], tmp_path: Path
) -> None:
    _adapters.base("gpt2", tmp_path / "base")
    theirs = _adapters.peft_model("gpt2", tmp_path / "base", target_modules=targets)
    theirs.save_pretrained(tmp_path / "peft")
    with pytest.raises(FileError, match="the output layer is tied to it") as caught:
        open_checkpoint(tmp_path / "peft")
    assert str(caught.value).startswith(f"{tmp_path}/peft/adapter_config.json: ")


def test_lora_adapters_of_the_body_alone_open(tmp_path: Path) -> None:
    # AutoModel instead of AutoModelForCausalLM: names without "transformer."
    _adapters.base("gpt", tmp_path / "base")
    settings = LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True)
    body = get_peft_model(OpenAIGPTModel.from_pretrained(tmp_path / "base"), settings).eval()
    _adapters.randomise(body, "lora_B")
    body.save_pretrained(tmp_path / "peft")
    opened = open_checkpoint(tmp_path / "peft").model
    lengths, fields = _adapters.inputs(opened)
    expected = body(input_ids=_adapters.IDS[None]).last_hidden_state[0]
    torch.testing.assert_close(opened(lengths, **fields), expected, atol=1e-5, rtol=1e-5)


def test_lora_of_another_program_needs_peft(tmp_path: Path, monkeypatch) -> None:
    model = _adapters.base("gpt", tmp_path / "base")
    _adapters.peft_model("gpt", tmp_path / "base").save_pretrained(tmp_path / "peft")
    _adapters.adapted("gpt", model)
    _adapters.write_adapters("gpt", model, tmp_path / "ours", tmp_path / "base")
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UsageError) as caught:
        open_checkpoint(tmp_path / "peft")
    assert str(caught.value) == (
        f"{tmp_path}/peft: adapters of another program need peft: peft is not installed "
        "(pip install peft)"
    )
    open_checkpoint(tmp_path / "ours")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"base_model_name_or_path": None}, "base_model_name_or_path is missing"),
        ({"base_model_name_or_path": "nobody/nothing"}, "its base nobody/nothing does not exist"),
        ({"r": 0}, "does not fit the base"),
        ({"lora_alpha": "16"}, "does not fit the base"),
        ({"peft_type": "NEW", "auto_mapping": None}, "peft cannot merge these adapters: 'NEW'"),
        ({"auto_mapping": None, "r": 3}, "adapters: Error(s) in loading state_dict"),
        ({"task_type": None, "auto_mapping": {"base_model_class": "Nosuch"}},
         "transformers has no model 'Nosuch'"),
    ],
)  # fmt: skip
def test_lora_settings_that_do_not_fit_are_refused_in_one_line(
    settings: dict, named: str, tmp_path: Path
) -> None:
    model = _adapters.base("cpm_ant", tmp_path / "base")
    _adapters.adapted("cpm_ant", model)
    _adapters.write_adapters("cpm_ant", model, tmp_path / "ours", tmp_path / "base")
    file = tmp_path / "ours" / peft_layout.SETTINGS
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    with pytest.raises(FileError) as caught:
        open_checkpoint(tmp_path / "ours")
    assert named in str(caught.value)
    assert str(tmp_path / "ours") in str(caught.value)
    assert "\n" not in str(caught.value)


def _q(layer: int) -> str:
    name = f"encoder.layers.{layer}.self_att.self_attention.project_q"
    return f"base_model.model.cpmant.{name}.lora_A.weight"


@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t.pop(_q(0)), "project_q.lora_A"),
        (lambda t: t.pop(_q(0).replace("_A", "_B")), "project_q.lora_B"),
        (lambda t: t.update({_q(0): t[_q(0)][:, :5]}), "size"),
    ],
)
def test_lora_tensors_that_do_not_fit_are_refused(
    change, named: str, is_own: bool, tmp_path: Path
) -> None:
    model = _adapters.base("cpm_ant", tmp_path / "base")
    _adapters.adapted("cpm_ant", model)
    _adapters.write_adapters("cpm_ant", model, tmp_path / "made", tmp_path / "base")
    settings = tmp_path / "made" / peft_layout.SETTINGS
    if not is_own:
        settings.write_text(json.dumps({**json.loads(settings.read_text()), "auto_mapping": None}))
    file = tmp_path / "made" / peft_layout.WEIGHTS
    tensors = load_file(file)
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)
    with pytest.raises(FileError) as caught:
        any_layout.read(tmp_path / "made")
    assert str(caught.value).startswith(f"{tmp_path}/made/")
    assert named in str(caught.value)


def test_lora_adapters_that_torch_saved_open_as_tensors_alone(tmp_path: Path) -> None:
    _adapters.base("cpm_ant", tmp_path / "base")
    _adapters.peft_model("cpm_ant", tmp_path / "base").save_pretrained(
        tmp_path / "peft", safe_serialization=True
    )
    expected = open_checkpoint(tmp_path / "peft").model.state_dict()
    safe, pickled = tmp_path / "peft" / peft_layout.WEIGHTS, tmp_path / "peft/adapter_model.bin"
    tensors = load_file(safe)
    safe.unlink()
    torch.save(tensors, pickled)
    opened = open_checkpoint(tmp_path / "peft").model.state_dict()
    assert all(torch.equal(opened[name], tensor) for name, tensor in expected.items())
    torch.save({**tensors, "x": Path("x")}, pickled)
    with pytest.raises(FileError, match=r"adapter_model.bin: not a file of tensors alone"):
        open_checkpoint(tmp_path / "peft")


@pytest.mark.parametrize(
    ("targets", "layers"),
    [
        (None, ["layers.0.q", "layers.0.v"]),
        ("out", ["layers.0.out"]),
        ("all-linear", [f"layers.0.{x}" for x in ("down", "gate", "k", "out", "q", "up", "v")]),
        (["k"], ["layers.0.k"]),
        (["project_k", "w_0"], ["layers.0.gate", "layers.0.k"]),
        (["w_in.w_1"], ["layers.0.up"]),
        (["layers.0.out"], ["layers.0.out"]),
        (
            ["all-linear", "q"],
            [f"layers.0.{x}" for x in ("down", "gate", "k", "out", "q", "up", "v")],
        ),
        (["k", "token_embedding"], ["layers.0.k", "token_embedding"]),
        ("input_embedding", ["token_embedding"]),
    ],
)
def test_lora_targets_go_by_our_names_and_transformers(targets, layers: list[str]) -> None:
    model_config = _adapters.CONFIGS["cpm_ant"].model_copy(update={"num_layers": 1})
    found = lora.find_targets(Config(targets=targets), _adapters.module("cpm_ant"), model_config)
    assert sorted(found) == layers


@pytest.mark.parametrize(
    ("family", "known"),
    [
        ("cpm_ant", "down, gate, k, out, q, token_embedding, up, v"),
        ("gpt", "c_attn, c_fc, c_proj, token_embedding"),
        ("t5", "down, key, project, query, up, value"),
        ("vit", "down, key, project, query, up, value"),
    ],
)
def test_lora_unknown_target_is_refused_with_those_there_are(family: str, known: str) -> None:
    with pytest.raises(UsageError) as caught:
        lora.find_targets(
            Config(targets=["nosuch"]), _adapters.module(family), _adapters.CONFIGS[family]
        )
    assert str(caught.value) == (
        f"lora.targets: no layer 'nosuch' in this model; it has {known}; "
        "all-linear: every linear layer"
    )


def test_all_linear_layers_of_a_model_that_has_none_are_refused() -> None:
    with pytest.raises(UsageError) as error:
        lora.find_targets(
            Config(targets="all-linear"), families.load_model("gru"), gru.Config(hidden_size=8)
        )
    assert str(error.value) == (
        "lora.targets: no linear layer in this model; it has token_embedding"
    )


def test_lora_dropout_is_on_the_input_of_a_in_training_only() -> None:
    # E[W x + s B A dropout(x)] is what evaluation gives.
    linear = torch.nn.Linear(6, 5)
    layer = lora.LoraLinear(linear, Config(rank=2, alpha=4.0, dropout=0.5))
    torch.nn.init.normal_(layer.lora_B)
    x = torch.randn(6)
    layer.eval()
    expected = linear(x) + 2.0 * layer.lora_B @ (layer.lora_A @ x)
    torch.testing.assert_close(layer(x), expected)
    layer.train()
    drawn = layer(x.expand(40_000, 6))
    assert drawn.std(0).min() > 0.1
    torch.testing.assert_close(drawn.mean(0), expected, atol=0.05, rtol=0)


# Runs


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the folder of a corpus and a pretrained checkpoint."""
    folder = tmp_path_factory.mktemp("start")
    path = _tiny.write(folder)
    sets = ("train.steps=4", "model.dropout=0.0")
    return folder, _tiny.pretrain(path, folder / "run", *sets)


LORA = "lora: {rank: 4, dropout: 0.1}"


def test_lora_run_trains_adapters_alone_and_keeps_the_base(start, tmp_path: Path) -> None:
    folder, base = start
    before = {p.name: p.read_bytes() for p in base.iterdir()}
    last = _tiny.pretrain(_adapters.tuning_recipe(folder, base, LORA), tmp_path / "run")
    assert {p.name: p.read_bytes() for p in base.iterdir()} == before
    assert not (last / hf_layout.WEIGHTS).exists()
    tensors = load_file(last / peft_layout.WEIGHTS)
    # 2 layers x (q, v) x (A, B) of 4 x 32
    assert {tuple(t.shape) for t in tensors.values()} == {(4, 32), (32, 4)}
    assert len(tensors) == 8
    moved = [
        name for name, tensor in tensors.items() if "lora_B" in name and tensor.abs().max() > 0
    ]
    assert len(moved) == 4
    moments = load_file(last / "optimizer.safetensors")
    assert len(moments) == 3 * 8
    # 1,024 numbers beside 24,800: float32, names and shapes
    assert (last / peft_layout.WEIGHTS).stat().st_size < 8_000
    assert (base / hf_layout.WEIGHTS).stat().st_size > 100_000
    losses = [r["held_out"]["loss"] for r in _tiny.metrics(tmp_path / "run") if "held_out" in r]
    assert losses[-1] < losses[0]
    merged, plain = any_layout.read(last)[1], any_layout.read(base)[1]
    changed = {name for name in merged if not torch.equal(merged[name], plain[name])}
    kinds = {name.rpartition("project_")[2] for name in changed}
    assert kinds == {"q.weight", "v.weight"}
    assert plain.keys() - {"lm_head.weight"} == merged.keys()


def test_lora_checkpoint_of_a_run_opens_in_peft(start, tmp_path: Path) -> None:
    folder, base = start
    last = _tiny.pretrain(_adapters.tuning_recipe(folder, base, LORA), tmp_path / "run")
    opened = PeftModel.from_pretrained(_adapters.theirs("cpm_ant", base), last).eval()
    ours = open_checkpoint(last).model
    ids = torch.arange(20, 50)
    torch.testing.assert_close(
        _adapters.logits(ours, ids), _adapters.logits(opened, ids), atol=1e-5, rtol=1e-5
    )


@pytest.mark.slow
def test_lora_run_resumed_equals_an_uninterrupted_one_bit_for_bit(start, tmp_path: Path) -> None:
    folder, base = start
    path = _adapters.tuning_recipe(folder, base, LORA)
    whole = _tiny.pretrain(path, tmp_path / "whole")
    parts = _tiny.pretrain_with_stops(path, tmp_path / "parts", [14, 20])
    assert _tiny.metrics(tmp_path / "parts") == _tiny.metrics(tmp_path / "whole")
    for name in (peft_layout.WEIGHTS, "optimizer.safetensors"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes()


def test_lora_run_of_other_default_targets_keeps_them(start, tmp_path: Path, monkeypatch) -> None:
    folder, base = start
    path = _adapters.tuning_recipe(folder, base, LORA)
    monkeypatch.setattr(_adapters.module("cpm_ant"), "LORA_TARGETS", ("q", "k", "v"))
    with pytest.raises(NlpkitError):
        _tiny.pretrain(path, tmp_path / "run", stop=_tiny.StopAfter(14))
    monkeypatch.undo()
    last = _tiny.pretrain(path, tmp_path / "run")
    kinds = {n.partition("project_")[2][0] for n in load_file(last / peft_layout.WEIGHTS)}
    assert kinds == {"q", "k", "v"}


def test_lora_run_goes_on_from_its_own_base_though_latest_has_moved(start, tmp_path: Path) -> None:
    folder, base = start
    moving = tmp_path / "moving"
    moving.symlink_to(base)
    path = _adapters.tuning_recipe(folder, moving, LORA)
    with pytest.raises(NlpkitError):
        _tiny.pretrain(path, tmp_path / "run", stop=_tiny.StopAfter(14))
    other = tmp_path / "other"
    shutil.copytree(base, other)
    moving.unlink()
    moving.symlink_to(other)
    tensors = {n: t + 1 for n, t in load_file(other / hf_layout.WEIGHTS).items()}
    save_file(tensors, other / hf_layout.WEIGHTS)
    assert (tmp_path / "run/checkpoints/latest").exists()
    last = _tiny.pretrain(path, tmp_path / "run")
    assert json.loads((last / peft_layout.SETTINGS).read_text())["base_model_name_or_path"] == str(
        base
    )


def test_lora_wrong_or_missing_base_is_refused_naming_both(start, tmp_path: Path) -> None:
    folder, first = start
    base = tmp_path / "base"
    shutil.copytree(first, base)
    path = _adapters.tuning_recipe(folder, base, LORA)
    last = _tiny.pretrain(path, tmp_path / "run", "train.steps=3")
    tensors = load_file(base / hf_layout.WEIGHTS)
    tensors["cpmant.segment_embedding.weight"][0, 0] += 1
    save_file(tensors, base / hf_layout.WEIGHTS)
    expected = f"{last}: {base} is not the model that these adapters were trained on"
    for attempt in (
        lambda: open_checkpoint(last),
        lambda: _tiny.pretrain(path, tmp_path / "run", "train.steps=5", allow_change=True),
    ):
        with pytest.raises(FileError) as caught:
            attempt()
        assert str(caught.value) == expected
    base.rename(tmp_path / "elsewhere")
    with pytest.raises(FileError) as caught:
        open_checkpoint(last)
    assert str(caught.value) == (
        f"{last}: its base {base} does not exist; restore it, or link the place where it is now: "
        f"ln -s DIR {base}"
    )
    shutil.copy(first / hf_layout.WEIGHTS, tmp_path / "elsewhere")
    base.symlink_to(tmp_path / "elsewhere")  # as the message says
    open_checkpoint(last)
    _tiny.pretrain(path, tmp_path / "run", "train.steps=5", allow_change=True)


def test_lora_adapters_as_a_start_train_whole_but_not_as_a_base(start, tmp_path: Path) -> None:
    folder, base = start
    last = _tiny.pretrain(_adapters.tuning_recipe(folder, base, LORA), tmp_path / "first")
    whole = _tiny.pretrain(
        _adapters.tuning_recipe(folder, last), tmp_path / "whole", "train.lr=1.0e-30"
    )
    for name, tensor in any_layout.read(last)[1].items():
        torch.testing.assert_close(
            load_file(whole / hf_layout.WEIGHTS)[name], tensor, rtol=0, atol=0
        )
    with pytest.raises(UsageError, match=r"has adapters itself; merge them first: nlpkit convert"):
        _tiny.pretrain(_adapters.tuning_recipe(folder, last, LORA), tmp_path / "second")


def test_lora_of_peft_is_a_start(start, tmp_path: Path) -> None:
    folder, base = start
    theirs = _adapters.peft_model("cpm_ant", base)
    theirs.save_pretrained(tmp_path / "peft")
    path = _adapters.tuning_recipe(folder, tmp_path / "peft")
    last = _tiny.pretrain(path, tmp_path / "run", "train.steps=3", "train.lr=1.0e-30")
    ids = torch.arange(20, 50)
    torch.testing.assert_close(
        _adapters.logits(_adapters.theirs("cpm_ant", last), ids), _adapters.logits(theirs, ids),
        atol=1e-5, rtol=1e-5,
    )  # fmt: skip


def test_lora_on_a_base_of_half_precision_opens_in_peft_and_in_ours(start, tmp_path: Path) -> None:
    folder, first = start
    base = tmp_path / "bf16"
    convert(first, base, Options(precision="bf16"))
    last = _tiny.pretrain(_adapters.tuning_recipe(folder, base, LORA), tmp_path / "run")
    plain = CpmAntForCausalLM.from_pretrained(base, dtype=torch.float32)
    theirs = PeftModel.from_pretrained(plain, last).eval()
    ids = torch.arange(20, 50)
    # The base as it is stored, the sum of base and adapters never rounded to bf16.
    torch.testing.assert_close(
        _adapters.logits(open_checkpoint(last).model, ids), _adapters.logits(theirs, ids),
        atol=1e-5, rtol=1e-5,
    )  # fmt: skip


def test_lora_recipe_without_a_start_is_refused(tmp_path: Path) -> None:
    path = _tiny.write(tmp_path)
    with pytest.raises(UsageError, match=r"lora: needs init_from"):
        recipe.load(str(path), ["lora={}"])


def test_lora_named_layers_that_the_base_lacks_are_said(tmp_path: Path) -> None:
    _adapters.base("bert", tmp_path / "base")
    file = tmp_path / "base/model.safetensors"
    save_file({k: v for k, v in load_file(file).items() if "pooler" not in k}, file)

    def find_part(targets: str) -> ModelPart:
        text = f"name: x\ninit_from: {tmp_path}/base\nlora: {{targets: {targets}}}\n"
        text += "data: {train: a}\nobjective: {name: mlm}\ntrain: {steps: 2, schedule: constant}\n"
        return init_from.model_part(recipe.parse(text.encode(), "r", tmp_path), None, None, print)

    said = "get no adapters, because the checkpoint lacks them: bert.pooler.dense"
    with pytest.raises(UsageError, match=f"^lora.targets: all of these {said}$"):
        find_part("[pooler]")
    assert find_part("[pooler, query]").warnings[-1] == f"layers of lora.targets {said}"
    assert find_part("all-linear").warnings == find_part("[query]").warnings


def test_lora_every_family_names_its_layers_as_transformers_does(tmp_path: Path) -> None:
    for family in registry.names("models"):
        module = _adapters.module(family)
        if not module.FORMAT.architecture:  # transformers has no such model
            continue
        model = _adapters.base(family, tmp_path / family)
        names = linear_names(module.FORMAT, module.Model, _adapters.CONFIGS[family])
        theirs = _adapters.theirs(family, tmp_path / family)
        for our_name, their_name in names.items():
            weight = model.get_submodule(our_name).weight
            other = theirs.get_submodule(in_memory(module.FORMAT, their_name)).weight
            expected = other.T if _adapters.TRANSPOSED[family] else other
            assert torch.equal(weight, expected)
        # A generator is a model of its own there, in a folder; patches are read by a convolution.
        layers = {n for n, m in model.named_modules() if type(m) is torch.nn.Linear}
        assert set(names) == {n for n in layers if not n.startswith(("generator.", "patch"))}


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the recipe of a classification on a small GPT, with adapters, and that GPT."""
    folder = tmp_path_factory.mktemp("classes")
    run = _tiny_tasks.start(folder, "gpt")
    text = _tiny_tasks.CLASSES + "lora: {rank: 4}\n"
    return _tiny_tasks.task(folder, "classes", text, run), (run / "checkpoints/latest").resolve()


@pytest.mark.slow
def test_lora_of_a_classifier_keeps_new_tokens_and_head(classes, tmp_path: Path) -> None:
    path, base = classes
    last = _tiny.pretrain(path, tmp_path / "whole")
    tensors = load_file(last / peft_layout.WEIGHTS)
    before = load_file(base / hf_layout.WEIGHTS)["transformer.tokens_embed.weight"]
    table = tensors["base_model.model.transformer.tokens_embed.weight"]
    assert torch.equal(table[:-3], before)  # _start_, _delimiter_, _classify_ are new
    assert len(table) == len(before) + 3
    assert tensors["base_model.model.score.weight"].shape == (3, 32)
    opened = open_checkpoint(last)
    assert torch.equal(opened.model.token_embedding, table)
    assert torch.equal(opened.model.head.weight, tensors["base_model.model.score.weight"])
    parts = _tiny.pretrain_with_stops(path, tmp_path / "parts", [22])
    assert len(list((tmp_path / "parts/checkpoints").glob("step-*"))) > 2
    for name in (peft_layout.WEIGHTS, "optimizer.safetensors"):
        assert (parts / name).read_bytes() == (last / name).read_bytes()


ON_TABLE = "lora.targets=[all-linear, token_embedding]"


@pytest.mark.parametrize("sets", [(), (ON_TABLE,)], ids=["layers", "table"])
def test_lora_classifier_opens_in_peft_with_equal_scores(
    sets: tuple[str, ...], classes, tmp_path: Path
) -> None:
    path, base = classes
    last = _tiny.pretrain(path, tmp_path / "run", *sets)
    opened = open_checkpoint(last)
    theirs = OpenAIGPTForSequenceClassification.from_pretrained(
        base, num_labels=3, pad_token_id=opened.tokenizer.pad_id
    )
    theirs.resize_token_embeddings(opened.tokenizer.vocab_size)
    theirs = PeftModel.from_pretrained(theirs, last).eval()
    ids = torch.tensor(
        [
            opened.tokenizer.special_id("_start_"),
            *opened.tokenizer.encode("花天地人山水"),
            opened.tokenizer.special_id("_classify_"),
        ]
    )
    with torch.no_grad():
        ours = opened.model.head(opened.model((len(ids),), ids)[-1:])
        expected = theirs(input_ids=ids[None]).logits
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
    convert(last, tmp_path / "merged")
    merged = OpenAIGPTForSequenceClassification.from_pretrained(tmp_path / "merged").eval()
    assert merged.config.id2label == {0: "bad", 1: "good", 2: "so so"}
    with torch.no_grad():
        torch.testing.assert_close(
            merged(input_ids=ids[None]).logits, expected, atol=1e-5, rtol=1e-5
        )


@pytest.mark.slow
def test_lora_table_goes_on_bit_for_bit_with_new_tokens(classes, tmp_path: Path) -> None:
    path, base = classes
    last = _tiny.pretrain(path, tmp_path / "whole", ON_TABLE)
    tensors = load_file(last / peft_layout.WEIGHTS)
    table = tensors["base_model.model.transformer.tokens_embed.base_layer.weight"]
    before = load_file(base / hf_layout.WEIGHTS)["transformer.tokens_embed.weight"]
    assert torch.equal(table[:-3], before)
    delta = open_checkpoint(last).model.token_embedding - table
    assert torch.linalg.matrix_rank(delta) == 4
    words = tensors["base_model.model.transformer.tokens_embed.lora_embedding_A"]
    assert (words != 0).any(0).equal((delta != 0).any(1))  # tokens of the rows
    parts = _tiny.pretrain_with_stops(path, tmp_path / "parts", [22], ON_TABLE)
    assert len(list((tmp_path / "parts/checkpoints").glob("step-*"))) > 2
    for name in (peft_layout.WEIGHTS, "optimizer.safetensors"):
        assert (parts / name).read_bytes() == (last / name).read_bytes()


def test_lora_table_with_new_tokens_opens_where_outputs_are_a_copy_of_it(tmp_path: Path) -> None:
    run = _tiny_tasks.start(tmp_path, "llama", "model.tie=true")
    text = _tiny_tasks.CLASSES + "lora: {rank: 4}\n"
    path = _tiny_tasks.task(tmp_path, "classes", text, run)
    last = _tiny.pretrain(path, tmp_path / "run", ON_TABLE)
    layer = "base_model.model.model.embed_tokens"
    saved = load_file(last / peft_layout.WEIGHTS)
    assert "base_model.model.lm_head.weight" in saved
    low = saved[f"{layer}.lora_embedding_B"] @ saved[f"{layer}.lora_embedding_A"]
    table = saved[f"{layer}.base_layer.weight"] + 4 * low.T  # alpha / rank = 16 / 4
    torch.testing.assert_close(open_checkpoint(last).model.token_embedding.detach(), table)


def test_lora_table_opens_on_a_base_that_has_more_rows_than_tokens(tmp_path: Path) -> None:
    run = _tiny_tasks.start(tmp_path, "llama", "model.tie=true") / "checkpoints/latest"
    base = tmp_path / "base"
    padded = AutoModelForCausalLM.from_pretrained(run)
    count = padded.config.vocab_size
    padded.resize_token_embeddings(count + 20)
    padded.save_pretrained(base)
    AutoTokenizer.from_pretrained(run).save_pretrained(base)
    _tiny.write(tmp_path)
    (tmp_path / "tune.yaml").write_text(
        f"name: tune\ninit_from: {base}\nlora: {{rank: 4}}\n"
        f"data: {{train: [{tmp_path / 'train.txt'}]}}\nobjective: {{name: clm, max_length: 32}}\n"
        "train: {steps: 3, tokens_per_step: 64, lr: 1.0e-2, schedule: constant}\n"
    )
    last = _tiny.pretrain(tmp_path / "tune.yaml", tmp_path / "run", ON_TABLE)
    table = open_checkpoint(last).model.token_embedding
    assert (table[:count] - padded.get_input_embeddings().weight[:count]).abs().max() > 0


def test_lora_table_of_a_language_model_opens_in_peft(start, tmp_path: Path) -> None:
    folder, base = start
    path = _adapters.tuning_recipe(folder, base, LORA)
    last = _tiny.pretrain(path, tmp_path / "run", ON_TABLE)
    opened = PeftModel.from_pretrained(_adapters.theirs("cpm_ant", base), last).eval()
    ours = open_checkpoint(last).model
    ids = torch.arange(20, 50)
    found, expected = _adapters.logits(opened, ids), _adapters.logits(ours, ids)
    torch.testing.assert_close(found[:, : expected.shape[1]], expected, atol=1e-5, rtol=1e-5)
    before = _adapters.logits(_adapters.theirs("cpm_ant", base), ids)
    assert (found - before).abs().max() > 0.1


@pytest.mark.parametrize("targets", [["c_attn"], ["c_attn", "tokens_embed"]])
def test_lora_with_a_head_of_peft_opens_in_ours(targets, classes, tmp_path: Path) -> None:
    _, base = classes
    plain = OpenAIGPTForSequenceClassification.from_pretrained(base, num_labels=3, pad_token_id=0)
    settings = LoraConfig(task_type="SEQ_CLS", r=4, target_modules=targets, fan_in_fan_out=True)
    theirs = get_peft_model(plain, settings).eval()
    _adapters.randomise(theirs, "lora_B")
    _adapters.randomise(theirs, "lora_embedding_A")
    theirs.save_pretrained(tmp_path / "peft")
    assert json.loads((tmp_path / "peft" / peft_layout.SETTINGS).read_text())["modules_to_save"]
    opened = open_checkpoint(tmp_path / "peft")
    ids = torch.arange(5, 25)
    with torch.no_grad():
        ours = opened.model.head(opened.model((len(ids),), ids)[-1:])
        expected = theirs(input_ids=ids[None]).logits
    assert expected.abs().max() > 0.01
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


def test_lora_with_tokens_added_in_peft_opens_in_ours(classes, tmp_path: Path) -> None:
    _, base = classes
    plain = _adapters.theirs("gpt", base)
    tokenizer = bpe.Tokenizer.load(base).extended(["<new>", "<newer>"])
    plain.resize_token_embeddings(tokenizer.vocab_size)
    settings = LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True)
    theirs = get_peft_model(plain, settings).eval()
    _adapters.randomise(theirs, "lora_B")
    theirs.save_pretrained(tmp_path / "peft", save_embedding_layers=True)
    tokenizer.save(tmp_path / "peft")
    opened = open_checkpoint(tmp_path / "peft")
    assert opened.tokenizer.special_id("<newer>") == opened.model.vocab_size - 1
    ids = torch.tensor([5, 6, opened.model.vocab_size - 1, 7])
    torch.testing.assert_close(
        _adapters.logits(opened.model, ids), _adapters.logits(theirs, ids), atol=1e-5, rtol=1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("targets", "environment"),
    [("null", {}), ("[all-linear, token_embedding]", {}),
     ("[all-linear, token_embedding]", _processes.FSDP)],
    ids=["layers", "table", "table on fsdp"],
)  # fmt: skip
def test_lora_two_processes_give_the_losses_of_one(
    targets: str, environment: dict[str, str], start, tmp_path: Path
) -> None:
    folder, base = start
    path = _adapters.tuning_recipe(folder, base, f"lora: {{rank: 4, targets: {targets}}}")
    one = _tiny.command("finetune", path, "--out", tmp_path / "one")
    assert one.returncode == 0, one.stderr
    two = _processes.launched(2, "finetune", path, "--out", tmp_path / "two", **environment)
    assert two.returncode == 0, two.stderr
    assert "processes: 2" in two.stderr
    assert (_processes.SHARDED in two.stderr) == bool(environment)
    for ours, theirs in _tiny.figures_of_both(tmp_path / "one", tmp_path / "two"):
        assert theirs["loss"] == pytest.approx(ours["loss"], abs=1e-4)
        assert theirs["targets"] == ours["targets"]
    ours, theirs = (
        load_file(tmp_path / name / "checkpoints/latest" / peft_layout.WEIGHTS)
        for name in ("one", "two")
    )
    for name, tensor in ours.items():
        torch.testing.assert_close(theirs[name], tensor, atol=1e-4, rtol=1e-3)
