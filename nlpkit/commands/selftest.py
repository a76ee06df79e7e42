"""Prove on this machine that RECIPE's objective and model do what they should."""

from typing import TYPE_CHECKING

from nlpkit.commands._options import Common, RecipeName, shared
from nlpkit.errors import NlpkitError
from nlpkit.plural import number_of

if TYPE_CHECKING:
    from nlpkit.selftest import Bench, Proof


@shared("overrides", "device")
def command(common: Common, recipe: RecipeName = "cpm_ant") -> None:
    """Prove in seconds that RECIPE's objective and model work on this machine.

    The model is made small; text, tokenizer and objective are those of the recipe. Nothing that is
    trained is kept. Prints a line for each proof, with its figure. The exit code is 1 if one fails.

    It finds targets that leak, sequences of a pack that see each other, text that is lost, batches
    that are unequal, gradients that depend on how a step is divided, runs that do not resume bit
    for bit, and checkpoints that are different when they are opened again.
    """
    resolved = common.load(recipe)
    from nlpkit import selftest

    log = common.open_log()
    proofs: list[Proof] = []
    with common.catch_signals() as stop:
        with selftest.bench(resolved, device=common.device, log=log, stop=stop) as bench:
            log.info(_describe(bench))
            for proof in selftest.prove(bench):
                proofs.append(proof)
                if not common.json:
                    verdict = f"{'ok  ' if proof.passed else 'FAIL'}  {proof.name:<18}"
                    print(f"{verdict} {proof.seconds:5.1f} s  {proof.figure}", flush=True)
        failed = [proof.name for proof in proofs if not proof.passed]
        if common.json:
            common.print_result(
                "",
                recipe=resolved.recipe.name,
                passed=not failed,
                device=str(bench.subject.device),
                precision=bench.precision,
                attention=bench.attention,
                shrunk={name: {"from": a, "to": b} for name, (a, b) in bench.shrunk.items()},
                proofs=[vars(proof) for proof in proofs],
            )
        if failed:
            raise NlpkitError(
                f"{len(failed)} of {number_of(len(proofs), 'proofs')} failed: {', '.join(failed)}"
            )
        seconds = sum(proof.seconds for proof in proofs)
        log.info(f"all {len(proofs)} proofs hold ({seconds:.0f} s)")


def _describe(bench: "Bench") -> str:
    shrunk = ", ".join(f"{name} {a} -> {b}" for name, (a, b) in bench.shrunk.items())
    return (
        f"proving {bench.run.part.family} on {bench.subject.device}, {bench.precision} where it "
        "trains; "
        + (f"attention: {bench.attention}; " if bench.attention else "")
        + (f"shrunk: {shrunk}" if shrunk else "not shrunk")
    )
