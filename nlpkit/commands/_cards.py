"""Accelerators by name: their peak in bf16, their memory, and how long a run takes on one of them.

Peaks are those of the makers' data sheets, of dense matrices ("without sparsity") in bf16 with sums
in float32. Cards that do not multiply bf16 are not here, since nlpkit computes in bf16 or float32.
"""

import math

from nlpkit.errors import UsageError
from nlpkit.json_types import JsonObject
from nlpkit.registry import suggest

# The share of the peak that a well-tuned run reaches: 0.3 to 0.5 is usual (Chowdhery et al. 2022,
# PaLM, table 3: 21 to 46 %).
UTILIZATION = 0.4


# Peak in 10^12 FLOP/s, memory in 10^9 bytes.
CARDS: dict[str, tuple[float, float]] = {
    "rtx3090": (71, 24),  # NVIDIA, Ampere GA102 GPU Architecture
    "rtx4090": (165.2, 24),  # NVIDIA, Ada GPU Architecture
    "a10": (125, 24),  # NVIDIA, A10 data sheet
    "a40": (149.7, 48),  # NVIDIA, A40 data sheet
    "l4": (121, 24),  # NVIDIA, L4 data sheet: 242 with sparsity
    "l40s": (362.05, 48),  # NVIDIA, L40S data sheet
    "a100": (312, 80),  # NVIDIA, A100 80GB data sheet
    "h100": (989.4, 80),  # NVIDIA, H100 Tensor Core GPU Architecture: SXM5
    "h100-pcie": (756, 80),  # NVIDIA, H100 PCIe data sheet: 1,513 with sparsity
    "h200": (989.4, 141),  # NVIDIA, H200 SXM data sheet: 1,979 with sparsity
    "b200": (2250, 180),  # NVIDIA, HGX B200: 36 PFLOP/s with sparsity on 8 cards
    "mi250x": (383, 128),  # AMD, Instinct MI250X data sheet
    "mi300x": (1307.4, 192),  # AMD, Instinct MI300X data sheet
}


def find(name: str) -> tuple[float, float]:
    """Return peak and memory of a card, in any case; raise `UsageError` if there is none."""
    card = CARDS.get(name.lower())
    if card is None:
        near = suggest(name.lower(), CARDS)
        raise UsageError(f"--card: no {name!r}{near}; known: {', '.join(CARDS)}")
    return card


def describe(name: str, flops: float | None, state_bytes: int) -> JsonObject:
    """Return what a run means for one card.

    Args:
        flops: of the whole run; None if its length is not known.
        state_bytes: of weights, gradients and optimizers, which more cards may share.
    """
    tera_flops, gigabytes = find(name)
    peak, memory = tera_flops * 1e12, round(gigabytes * 1e9)
    return {
        "name": name.lower(),
        "peak_flops_per_second": peak,
        "utilization": UTILIZATION,
        "run_seconds": None if flops is None else flops / (peak * UTILIZATION),
        "card_memory_bytes": memory,
        "cards_that_hold_the_state": math.ceil(state_bytes / memory),
    }
