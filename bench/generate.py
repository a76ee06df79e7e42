"""Greedy generation, tokens a second: nlpkit against `transformers.generate`, same weights.

    python bench/generate.py [--threads 2] [--rounds 5] [--prompt 32] [--new 64] [--batch 1 8 32]
                              [--precision fp32]

Prints a markdown table: both families in the size of the shipped recipe (4 x 256, vocabulary 8000),
random weights, no end token. All prompts have the same length, which suits transformers best: it
pads. Rounds are interleaved, so that a busy machine disturbs both alike; median and best of each.
On one thread the time is that of the processor, which other programs disturb less. Both must
generate the same tokens, or the share of equal ones is shown (near ties round differently).
"""

import argparse
import statistics
import time

import numpy as np
import torch
from transformers import (
    CpmAntConfig,
    CpmAntForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
)

from nlpkit import __version__
from nlpkit.checkpoints import hf_writing
from nlpkit.generate.engine import generate
from nlpkit.generate.rows import Rules
from nlpkit.generate.settings import Settings
from nlpkit.models import cpm_ant, gpt
from nlpkit.models.cpm_ant import model as cpm_ant_model
from nlpkit.models.gpt import model as gpt_model
from nlpkit.objectives import clm as clm_objective
from nlpkit.objectives import cpm_ant as cpm_ant_objective
from nlpkit.train import machine

VOCABULARY = 8000
FIRST = 10  # smaller ids are special ones


class _Tokenizer:
    vocab_size, bos_id, eos_id, unk_id, pad_id = VOCABULARY, 6, 7, 1, 0


def make_cpm_ant():
    """Return our model, its objective and transformers' model with the same weights."""
    config = cpm_ant.Config(
        hidden_size=256, num_layers=4, num_heads=8, intermediate_size=640, prompt_types=4,
        prompt_length=8, segment_types=8, num_buckets=128, max_distance=512,
    )  # fmt: skip
    model = cpm_ant_model.Model(config, VOCABULARY).eval()
    settings, tensors = hf_writing.to_hf("cpm_ant", config, model.state_dict())[""]
    theirs = CpmAntForCausalLM(CpmAntConfig(**settings)).eval()
    theirs.load_state_dict(tensors)
    objective = cpm_ant_objective.Objective(
        cpm_ant_objective.Config(max_length=1024), _Tokenizer(), config
    )
    return model, objective, theirs


def make_gpt():
    """Return our model, its objective and transformers' model with the same weights."""
    config = gpt.Config(hidden_size=256, num_layers=4, num_heads=8, max_positions=1024)
    model = gpt_model.Model(config, VOCABULARY).eval()
    settings, tensors = hf_writing.to_hf("gpt", config, model.state_dict())[""]
    theirs = OpenAIGPTLMHeadModel(OpenAIGPTConfig(**settings)).eval()
    theirs.load_state_dict(tensors)
    objective = clm_objective.Objective(clm_objective.Config(max_length=1024), _Tokenizer(), config)
    return model, objective, theirs


def run_ours(model, objective, prompts, new):
    """Return the tokens (B, new) that nlpkit generates."""
    made = (objective.continue_text(ids, new) for ids in prompts)
    rules = Rules(suppress_tokens=tuple(range(FIRST)))
    answers = generate(model, made, Settings(), rules, batch=len(prompts), scores=False)
    return [list(each[0].ids) for each in answers]


def run_theirs(model, family, prompts, new):
    """Return the tokens (B, new) that transformers generates."""
    ids = torch.tensor(prompts)
    if family == "cpm_ant":  # what our objective puts in front, beside the soft prompt
        ids = torch.cat([torch.full((len(ids), 1), _Tokenizer.bos_id), ids], 1)
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            suppress_tokens=list(range(FIRST)),
            eos_token_id=None,
            pad_token_id=0,
        )
    return out[:, ids.shape[1] :].tolist()


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    machine.configure_allocator()
    clock = time.process_time if given.threads == 1 else time.perf_counter
    unit = "processor time" if given.threads == 1 else "wall time"
    print(
        f"nlpkit {__version__}, torch {torch.__version__}, {given.precision}, "
        f"{given.threads} threads, {unit}; "
        f"{given.prompt} tokens of prompt, {given.new} new, {given.rounds} rounds; tokens/s, "
        "median (best)\n"
    )
    print("| family | batch | nlpkit | transformers | ratio | equal tokens |")
    print("|---|---|---|---|---|---|")
    for family, make in (("cpm_ant", make_cpm_ant), ("gpt", make_gpt)):
        torch.manual_seed(0)
        model, objective, theirs = make()
        if given.precision == "bf16":
            model, theirs = model.bfloat16(), theirs.bfloat16()
        model.requires_grad_(False)
        rng = np.random.default_rng(0)
        for batch in given.batch:
            prompts = rng.integers(FIRST, VOCABULARY, (batch, given.prompt)).tolist()
            times = {"ours": [], "theirs": []}
            for number in range(given.rounds + 1):
                start = clock()
                ours = run_ours(model, objective, prompts, given.new)
                between = clock()
                others = run_theirs(theirs, family, prompts, given.new)
                if number:  # the first warms up
                    times["ours"].append(between - start)
                    times["theirs"].append(clock() - between)
            equal = np.mean(np.array(ours) == np.array(others))
            tokens = batch * given.new
            cells = [
                f"{tokens / statistics.median(taken):,.0f} ({tokens / min(taken):,.0f})"
                for taken in times.values()
            ]
            ratio = statistics.median(times["theirs"]) / statistics.median(times["ours"])
            print(f"| {family} | {batch} | {' | '.join(cells)} | {ratio:.1f} | {equal:.1%} |")


if __name__ == "__main__":
    main()
