"""LoRA on a model of SmolLM2-135M's sizes: what `nlpkit plan` says, and what the run then takes.

    python bench/coffee_break.py FOLDER [--epochs 3] [--threads 2] [--profile]

FOLDER gets a directory as it is published (`config.json`, `model.safetensors`, `tokenizer.json`)
with random weights: 30 layers x 576, 9 heads, 3 of keys, vocabulary 49,152; then 1,000 rows of the
shipped text, 126 tokens each (128 with the tokens around them), a recipe, and a run. With
`--profile`: which share of six steps the processor spends in what (torch.profiler), and no plan.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VOCABULARY, ROW, ROWS, HELD_OUT = 49152, 126, 1000, 100
RECIPE = """\
name: coffee_break
seed: 1
init_from: model
lora: {{}}
data: {{train: [train.jsonl], valid: [valid.jsonl]}}
objective: {{name: clm, max_length: 128}}
train:
  epochs: {epochs}
  tokens_per_step: 2048
  lr: 1.0e-3
  precision: bf16
  schedule: linear
  warmup_ratio: 0.05
"""


def texts() -> list[str]:
    """Return the documents of the shipped English text."""
    files = sorted((ROOT / "data/en/train").glob("*.jsonl"))
    return [json.loads(line)["text"] for f in files for line in f.read_text("utf-8").splitlines()]


def write_model(folder: Path) -> None:
    """Write a directory with SmolLM2-135M's configuration."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    end, alphabet = "<|endoftext|>", pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[end], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts(), trainer)
    # The shipped text has fewer pieces; the others are never used.
    state = json.loads(tokenizer.to_str())
    pieces = state["model"]["vocab"]
    pieces |= {f"<extra{n}>": n for n in range(len(pieces), VOCABULARY)}
    tokenizer = Tokenizer.from_str(json.dumps(state))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=end, eos_token=end, unk_token=end
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
        num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True,
        max_position_embeddings=8192, rms_norm_eps=1e-5, bos_token_id=0, eos_token_id=0,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
    )  # fmt: skip
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def write_rows(folder: Path) -> None:
    """Write rows of `ROW` tokens each; the text begins again where it ends."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    ids = tokenizer("\n".join(texts()))["input_ids"]
    ids *= -(-ROW * (ROWS + HELD_OUT) // len(ids))
    rows = [tokenizer.decode(ids[n * ROW : (n + 1) * ROW]) for n in range(ROWS + HELD_OUT)]
    for name, some in (("train", rows[:ROWS]), ("valid", rows[ROWS:])):
        lines = "".join(json.dumps({"text": row}) + "\n" for row in some)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")


def profile(folder: Path) -> None:
    """Print the shares of the processor's time in six steps, by what is computed."""
    from torch.profiler import ProfilerActivity, profile

    from nlpkit import cli

    os.chdir(folder)
    few = Path("train.jsonl").read_text("utf-8").splitlines(keepends=True)[:2]
    Path("few.jsonl").write_text("".join(few), "utf-8")
    sets = ["train.epochs=null", "train.steps=6", "data.valid=[few.jsonl]", "out=profiled"]
    command = ["finetune", "coffee_break.yaml", "-q", "--allow-change"]
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as taken:
        assert cli.run([*command, *(part for each in sets for part in ("--set", each))]) == 0
    seconds: Counter[str] = Counter()
    for event in taken.key_averages(group_by_input_shape=True):
        seconds[_what(event.key, str(event.input_shapes))] += event.self_cpu_time_total / 1e6
    whole = seconds.total()
    print(f"| what | share of {whole:.1f} s |\n|---|---|")
    for what, some in seconds.most_common():
        print(f"| {what} | {100 * some / whole:.0f} % |")


def _what(name: str, shapes: str) -> str:
    """Return what an operation belongs to; `shapes` are those of its inputs."""
    table = str(VOCABULARY) in shapes
    if "bmm" in name or "Attention" in name:
        return "attention"
    if any(part in name for part in ("mm", "linear", "matmul")):
        return "products with the table" if table else "products of the layers"
    return "loss over the vocabulary" if table else "the rest: norms, rotation, gates, copies"


def main() -> None:
    """Write what is needed, plan, train, and print both."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    folder = given.folder
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "model/config.json").exists():
        write_model(folder / "model")
    write_rows(folder)
    (folder / "coffee_break.yaml").write_text(RECIPE.format(epochs=given.epochs), "utf-8")
    if given.profile:
        profile(folder)
        return
    environment = os.environ | {"OMP_NUM_THREADS": str(given.threads)}

    def nlpkit(*arguments: str) -> str:
        command = [sys.executable, "-m", "nlpkit", *arguments]
        done = subprocess.run(
            command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True
        )
        return done.stdout

    plan = json.loads(nlpkit("plan", "coffee_break.yaml", "--json"))["estimate"]
    begin, before = time.perf_counter(), os.times()
    nlpkit("finetune", "coffee_break.yaml", "--out", "run")
    taken, after = time.perf_counter() - begin, os.times()
    cpu = sum(after[2:4]) - sum(before[2:4])  # user and system, of children
    steps = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    peak = max(step.get("memory_bytes", 0) for step in steps)
    memory = plan["peak_memory_bytes"] / 1e9
    print("| | minutes | of CPU time | peak memory, GB |\n|---|---|---|---|")
    print(f"| plan | {plan['total_seconds'] / 60:.1f} | | {memory:.2f} |")
    print(f"| run, with start and saving | {taken / 60:.1f} | {cpu / 60:.1f} | {peak / 1e9:.2f} |")


if __name__ == "__main__":
    main()
