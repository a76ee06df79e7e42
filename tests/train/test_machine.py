"""What the machine does best: the compute type is found on a busy machine, too."""

from itertools import count

import pytest
import torch

from nlpkit.train import machine


def test_product_is_timed_though_other_programs_take_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A clock that moves on by a second at each look: the 25 ms are over before the first product.
    clock = count()
    monkeypatch.setattr(machine.time, "perf_counter", lambda: float(next(clock)))
    assert machine._gemm_seconds(torch.float32, 512) == 1.0
    assert next(clock) == 2 + 2 * machine._MIN_PRODUCTS  # two looks at the clock for a product


def test_type_that_is_slow_is_not_tried_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count()
    monkeypatch.setattr(machine.time, "perf_counter", lambda: float(next(clock)))
    assert machine._gemm_seconds(torch.float32, 512, 0.5) == 1.0
    assert next(clock) == 1 + 2 * 3


def test_large_product_is_not_tried_in_a_type_that_has_no_units(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # On an AMD EPYC without AVX-512 a product of 512 took 0.23 s in bfloat16, 1.3 ms of 128.
    tried = []

    def seconds(dtype: torch.dtype, size: int, too_long: float = 0) -> float:
        tried.append((dtype, size))
        return 48e-6 if dtype is torch.float32 else 1.36e-3

    monkeypatch.setattr(machine, "_gemm_seconds", seconds)
    assert machine.choose_precision("auto", torch.device("cpu"))[0] == "fp32"
    assert tried == [(torch.float32, 128), (torch.bfloat16, 128)]


def test_trying_products_leaves_the_number_of_threads() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        machine.choose_precision("auto", torch.device("cpu"))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("ratio", "expected"), [(1.4, "fp32"), (1.6, "bf16")])
def test_bf16_is_chosen_where_it_is_enough_faster(
    ratio: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {torch.float32: ratio, torch.bfloat16: 1.0}
    monkeypatch.setattr(machine, "_gemm_seconds", lambda dtype, *_: seconds[dtype])
    assert machine.choose_precision("auto", torch.device("cpu"))[0] == expected
    assert machine.choose_precision("fp32", torch.device("cpu")) == ("fp32", "asked for")


def test_reason_is_short_whatever_the_machine_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    # `nlpkit plan` shows it in 80 columns. 0.0167 was seen on an AMD EPYC without AVX-512.
    seconds = {torch.float32: 0.0167, torch.bfloat16: 1.0}
    monkeypatch.setattr(machine, "_gemm_seconds", lambda dtype, *_: seconds[dtype])
    name, reason = machine.choose_precision("auto", torch.device("cpu"))
    assert (name, reason) == ("fp32", "bf16 multiplies 0.017 x as fast here")
