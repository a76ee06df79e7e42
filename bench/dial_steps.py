"""How much the first steps change a model at each width: a rate for all widths changes all alike.

    python bench/dial_steps.py [--widths 128 256 512] [--steps 4] [--seeds 3]

The check of coordinates of Yang et al. 2022 (arXiv:2203.03466, app. D.1), without training: GPT-2
of 2 layers without dropout takes a few steps on one batch of 1,024 random tokens, whose
frequencies are Zipf's, and the root mean square of the change of all logits is printed, for rates
that are constant, go by 1 / √width or by 1 / width, and have the same value at a width of 256.
"""

import statistics
from argparse import ArgumentParser, RawTextHelpFormatter

import torch

from nlpkit.models.gpt2 import Config
from nlpkit.models.gpt2.model import Model
from nlpkit.train.optim import optimizers
from nlpkit.train.optimizers import adamw, muon
from nlpkit.train.schedule import ResolvedTraining

VOCABULARY, LENGTHS = 2000, [256] * 4
POWERS = {"constant": 0.0, "1 / √width": 0.5, "1 / width": 1.0}
RATES = {"muon": muon.RATE, "adamw": adamw.RATE}


def change(width: int, optimizer: str, rate: float, steps: int, seed: int) -> float:
    """Return the root mean square of the change of the logits."""
    torch.manual_seed(seed)
    none = dict.fromkeys(("embedding_dropout", "attention_dropout", "residual_dropout"), 0.0)
    sizes = {"hidden_size": width, "num_layers": 2, "num_heads": width // 64, "max_positions": 256}
    model = Model(Config.model_validate(sizes | none), VOCABULARY)
    settings = {"steps": steps, "lr": rate, "schedule": "constant", "optimizer": optimizer}
    made = optimizers(model, ResolvedTraining.model_validate(settings))
    tokens = torch.multinomial(1 / torch.arange(1.0, VOCABULARY + 1), sum(LENGTHS), True)
    index = torch.arange(len(tokens) - 1)

    def logits() -> torch.Tensor:
        with torch.no_grad():
            return model.logits(model(LENGTHS, tokens))

    before = logits()
    for _ in range(steps):
        loss, _ = model.token_loss(model(LENGTHS, tokens), index, tokens[1:])
        (loss / len(index)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for each in made:
            each.step()
            each.zero_grad()
    return (logits() - before).square().mean().sqrt().item()


def main() -> None:
    """Print a row for each optimizer and rule."""
    made = ArgumentParser(description=__doc__, formatter_class=RawTextHelpFormatter)
    made.add_argument("--widths", nargs="+", type=int, default=(128, 256, 512))
    made.add_argument("--steps", type=int, default=4)
    made.add_argument("--seeds", type=int, default=3)
    options = made.parse_args()
    torch.set_num_threads(1)
    print("| optimizer | rate | " + " | ".join(map(str, options.widths)) + " |")
    print("|---" * (2 + len(options.widths)) + "|", flush=True)
    for optimizer, rate in RATES.items():
        for rule, power in POWERS.items():
            cells = []
            for width in options.widths:
                scaled = rate * (256 / width) ** power
                found = [
                    change(width, optimizer, scaled, options.steps, seed)
                    for seed in range(1, options.seeds + 1)
                ]
                cells.append(f"{statistics.fmean(found):.2f}")
            print(f"| {optimizer} | {rule} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
