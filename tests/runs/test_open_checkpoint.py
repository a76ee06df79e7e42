"""Opening checkpoints: runs, checkpoints, directories of transformers, and damaged ones."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    CpmAntForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
)

from nlpkit.errors import FileError, UsageError
from nlpkit.generate.settings import Settings
from nlpkit.generate.texts import Writer
from nlpkit.models.cpm_ant.model import Model
from nlpkit.runs.convert import convert
from nlpkit.runs.open_checkpoint import find_checkpoint, open_checkpoint
from nlpkit.tokenizers.gpt1_bpe import Config as BpeConfig
from nlpkit.tokenizers.gpt1_bpe import Tokenizer as BpeTokenizer
from tests import _adapters, _tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("opening")
    _tiny.pretrain(_tiny.write(folder), folder / "run", "train.steps=8", "train.eval_every=4")
    return folder / "run"


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """Return a checkpoint that a test may damage."""
    shutil.copytree(run / "checkpoints" / "step-00000008", tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def foreign(copy: Path) -> Path:
    """Return one without nlpkit's own files."""
    for name in ("manifest.json", "nlpkit.json"):
        (copy / name).unlink()
    return copy


def _logits(model: Model, ids: list[int]) -> torch.Tensor:
    """Return ours for what transformers' forward does: its prompt in front, all context."""
    config = model.config
    prompt = model.vocab_size + config.prompts.generation * config.prompt_length
    soft = list(range(prompt, prompt + config.prompt_length))
    n = len(soft) + len(ids)
    segment = torch.tensor([0] * len(soft) + [2] * len(ids))
    context = torch.ones(n, dtype=torch.bool)
    hidden = model((n,), torch.tensor(soft + ids), segment, torch.arange(n), context)
    return model.logits(hidden)[len(soft) :]


def test_open_checkpoint_has_the_logits_of_transformers(run: Path) -> None:
    path = run / "checkpoints" / "latest"
    opened = open_checkpoint(path, device="cpu")
    theirs = AutoModelForCausalLM.from_pretrained(path).eval()
    ids = [12, 40, 33, 20, 11]
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor([ids])).logits[0]
    torch.testing.assert_close(_logits(opened.model, ids), expected, atol=1e-5, rtol=1e-5)
    assert not opened.model.training
    assert opened.part.family == "cpm_ant"
    assert opened.path == path.resolve()


def test_open_checkpoint_reads_the_objective_beside_the_weights(run: Path) -> None:
    opened = open_checkpoint(run)
    assert opened.notes["objective"]["name"] == "cpm_ant"
    assert opened.objective.config.max_length == 64
    assert opened.objective.tokenizer is opened.tokenizer


def test_open_checkpoint_that_transformers_saved_has_the_default_objective(
    foreign: Path, tmp_path: Path
) -> None:
    theirs = CpmAntForCausalLM.from_pretrained(foreign)
    theirs.save_pretrained(tmp_path / "theirs")
    shutil.copy(foreign / "vocab.txt", tmp_path / "theirs")
    opened = open_checkpoint(tmp_path / "theirs")
    assert opened.notes == {}
    assert opened.objective.config.max_length == 512
    ids = [12, 40, 33]
    with torch.no_grad():
        expected = theirs.eval()(input_ids=torch.tensor([ids])).logits[0]
    torch.testing.assert_close(_logits(opened.model, ids), expected, atol=1e-5, rtol=1e-5)


def test_open_checkpoint_of_a_short_gpt_by_transformers_fits_its_objective(tmp_path: Path) -> None:
    texts = ["the cat sat on the mat .", "a dog ran home ."] * 5
    tokenizer = BpeTokenizer.train(texts, BpeConfig(vocab_size=40))
    tokenizer.save(tmp_path)
    config = OpenAIGPTConfig(
        vocab_size=tokenizer.vocab_size, n_embd=16, n_layer=2, n_head=2, n_positions=20
    )
    theirs = OpenAIGPTLMHeadModel(config).eval()
    theirs.save_pretrained(tmp_path)
    opened = open_checkpoint(tmp_path)
    assert opened.objective.max_length == 20
    ids = tokenizer.encode("the dog sat")
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor([ids])).logits[0]
        found = opened.model.logits(opened.model((len(ids),), torch.tensor(ids)))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("file", "one"),
    [("config.json", False), ("generation_config.json", False), ("generation_config.json", True)],
)
def test_each_end_token_ends_a_text_as_in_transformers(
    tmp_path: Path, file: str, one: bool
) -> None:
    torch.manual_seed(4)
    _adapters.base("gpt2", tmp_path / "base")
    path, text = tmp_path / "base" / file, _tiny.WORDS[:5]
    opened = open_checkpoint(tmp_path / "base")
    never = list(opened.objective.suppress_tokens)
    inputs = torch.tensor([opened.objective.continue_text(opened.tokenizer.encode(text), 9).text])

    def write(place: Path) -> list[int]:
        theirs = AutoModelForCausalLM.from_pretrained(place)
        given = {"max_new_tokens": 9, "suppress_tokens": never, "do_sample": False}
        return theirs.generate(inputs, attention_mask=inputs > -1, **given)[0, len(text) :].tolist()

    end = write(tmp_path / "base")[3]
    settings = json.loads(path.read_text()) if path.exists() else {}
    ends = end if one else [opened.tokenizer.eos_id, end]
    path.write_text(json.dumps(settings | {"eos_token_id": ends}))
    convert(tmp_path / "base", tmp_path / "out")
    for place in (tmp_path / "base", tmp_path / "out"):
        expected = write(place)
        assert end in expected[:4]
        opened = open_checkpoint(place)
        writer = Writer(
            opened.model, opened.tokenizer, opened.objective, Settings(max_new_tokens=9)
        )
        ((output,),) = (each.outputs for each in writer.write([text]))
        assert output.text == opened.tokenizer.decode(expected[:-1])
        assert output.ended


def test_end_token_that_the_vocabulary_lacks_is_left_out_and_a_word_refused(tmp_path: Path) -> None:
    _adapters.base("gpt2", tmp_path / "base")
    path = tmp_path / "base/generation_config.json"
    path.write_text('{"eos_token_id": [3, 50256]}')  # with --min-new-tokens it was an IndexError
    assert open_checkpoint(path.parent).objective.eos_token_ids == (3,)
    path.write_text('{"eos_token_id": [3, "</s>"]}')
    said = f'^{path.parent}: eos_token_id: "</s>" is no id of a token$'
    with pytest.raises(FileError, match=said):
        open_checkpoint(path.parent)


def test_find_checkpoint_prefers_the_best_of_a_run(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run", symlinks=True)
    links = tmp_path / "run" / "checkpoints"
    (links / "best").unlink()
    (links / "best").symlink_to("step-00000004")
    said: list[str] = []
    assert find_checkpoint(tmp_path / "run", said.append).name == "step-00000004"
    assert said == [f"{tmp_path / 'run'}: its best checkpoint, step-00000004"]
    assert find_checkpoint(links).name == "step-00000004"
    assert find_checkpoint(links / "latest").name == "step-00000008"
    (links / "best").unlink()
    assert find_checkpoint(tmp_path / "run", said.append).name == "step-00000008"
    assert said[-1].endswith("its latest checkpoint, step-00000008")


def test_find_checkpoint_where_there_is_none_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"no such directory; give a checkpoint, or a run"):
        find_checkpoint(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match=r"not a directory"):
        find_checkpoint(tmp_path / "file")
    with pytest.raises(FileError, match=r"neither a checkpoint \(no config.json\) nor a run"):
        find_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "vocab.txt", "nlpkit.json"])
def test_open_checkpoint_with_a_flipped_bit_is_refused(copy: Path, name: str) -> None:
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(FileError, match=rf": {name} has changed since it was written"):
        open_checkpoint(copy)


@pytest.mark.parametrize("name", ["model.safetensors", "vocab.txt"])
def test_open_checkpoint_with_a_missing_file_is_refused(copy: Path, name: str) -> None:
    (copy / name).unlink()
    with pytest.raises(FileError, match=rf": {name} is missing"):
        open_checkpoint(copy)


def test_open_checkpoint_needs_no_optimizer(copy: Path) -> None:
    (copy / "optimizer.safetensors").unlink()
    (copy / "training.json").write_text("{}")
    assert open_checkpoint(copy).part.family == "cpm_ant"


@pytest.mark.parametrize("manifest", ["", "[]", '{"files": {"config.json": 3}}'])
def test_open_checkpoint_with_a_broken_manifest_is_refused(copy: Path, manifest: str) -> None:
    (copy / "manifest.json").write_text(manifest)
    with pytest.raises(FileError, match=r": manifest.json: "):
        open_checkpoint(copy)


@pytest.mark.parametrize("name", ["model.safetensors", "vocab.txt"])
def test_open_foreign_directory_without_a_file_is_refused(foreign: Path, name: str) -> None:
    (foreign / name).unlink()
    with pytest.raises(FileError, match=rf"no such file|no tokenizer here.*{name}"):
        open_checkpoint(foreign)


def test_open_foreign_directory_with_cut_weights_is_refused(foreign: Path) -> None:
    whole = (foreign / "model.safetensors").read_bytes()
    (foreign / "model.safetensors").write_bytes(whole[:-100])
    with pytest.raises(FileError, match="not a readable safetensors file"):
        open_checkpoint(foreign)


def test_open_foreign_directory_with_another_tokenizer_is_refused(foreign: Path) -> None:
    with open(foreign / "vocab.txt", "a", encoding="utf-8") as file:
        file.write("新词\n")
    with pytest.raises(FileError, match=r"the model has \d+ tokens and its tokenizer has"):
        open_checkpoint(foreign)


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ({"name": "cpm_ent"}, r"no 'cpm_ent', did you mean cpm_ant\?"),
        ({"name": "cpm_ant", "max_lenght": 3}, r"objective.max_lenght: unknown setting"),
        ({"name": "cpm_ant", "max_length": 8}, r"max_length: 8 leaves 2 tokens"),
        ({"name": "clm"}, r"clm needs causal"),
        ({"max_length": 8}, r"'name' is missing"),
        ("cpm_ant", r"objective: "),
    ],
)
def test_open_checkpoint_with_notes_that_do_not_fit_is_refused(
    foreign: Path, objective: object, message: str
) -> None:
    (foreign / "nlpkit.json").write_text(json.dumps({"objective": objective}))
    with pytest.raises(FileError, match=message) as caught:
        open_checkpoint(foreign)
    assert "\n" not in str(caught.value)


def test_open_checkpoint_on_a_device_that_is_not_there_is_refused(run: Path) -> None:
    with pytest.raises(UsageError, match=r"--device cuda:77: not available"):
        open_checkpoint(run, device="cuda:77")


def test_open_checkpoint_in_bf16(run: Path) -> None:
    opened = open_checkpoint(run, precision="bf16")
    assert {p.dtype for p in opened.model.parameters()} == {torch.bfloat16}
    exact = open_checkpoint(run, precision="fp32").model
    ids = [12, 40, 33, 20, 11]
    close = _logits(opened.model, ids).float()
    torch.testing.assert_close(close, _logits(exact, ids), atol=0.1, rtol=0.05)
