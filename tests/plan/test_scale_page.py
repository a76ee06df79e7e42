"""docs/scale.md and lab/scale.md: the plan of CPM-Ant 10B can be made; figures follow from it."""

from pathlib import Path

import pytest

from nlpkit import plan as planning
from nlpkit import recipe
from nlpkit.train import machine
from nlpkit.train.log import QUIET, Log

PAGE = "\n".join(Path(f"docs/{name}.md").read_text("utf-8") for name in ("scale", "lab/scale"))


@pytest.mark.slow
def test_figures_of_the_10b_are_those_of_the_plan(tmp_path: Path) -> None:
    resolved = recipe.load("docs/scripts/cpm_ant_10b.yaml", [f"out={tmp_path}/run"])
    device = planning.machine.find_device("cpu")
    before = machine.used_memory(device)[0]
    plan = planning.make(resolved, tmp_path / "run", "cpu", Log(QUIET), measure=False)
    figures = planning.describe(plan)
    assert machine.used_memory(device)[0] - before < 2**31  # 37 GB of weights are not made
    parameters, flops = figures["model"]["parameters"], figures["model"]["flops_per_step"]
    assert f"{parameters:,} parameters; {flops / 1e9:,.1f} GFLOP" in PAGE
    assert f"{figures['data']['vocabulary']:,} tokens" in PAGE
    # 12 bytes a weight with Muon (16 for the few that AdamW has), by hand.
    of_adamw = figures["model"]["optimizer"][1:]
    assert figures["model"]["state_bytes"] == 12 * parameters + 4 * sum(
        group["weights"] for group in of_adamw
    )
    more = (30_720 - 6_021) * 4_096
    whole = parameters + more
    for said, value in (
        ("16 P / 8 | {:.1f}", 2 * whole / 1e9),
        ("12 P / 8 | {:.1f}", 1.5 * whole / 1e9),
        ("2 P | {:.1f}", 2 * whole / 1e9),
        ("48 layers · 4,096 tokens | {:.1f}", 54 * 4096 * 48 * 4096 / 1e9),
    ):
        assert said.format(value) in " ".join(PAGE.split()), said
    targets = figures["packing"]["share_of_tokens_with_loss"] * 2**21
    step = flops + 6 * targets * more
    seconds = [step / (gpus * 312e12 * 0.4) for gpus in (8, 512)]
    assert f"| {seconds[0]:.0f} | {seconds[1]:.2f} |" in PAGE
    steps = resolved.recipe.train.steps
    assert steps == -(-200 * 10**9 // 2**21)
    assert f"| {steps * seconds[0] / 3600:,.0f} | {steps * seconds[1] / 3600:.1f} |" in PAGE
    assert step == pytest.approx(1.173e17, rel=1e-3)
