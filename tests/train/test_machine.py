"""What the machine does best: the compute type, by what the processor says it can do."""

from pathlib import Path

import pytest
import torch

from nlpkit.train import machine


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("fma avx512_bf16", "bf16"), ("amx_bf16 fma", "bf16"), ("fma avx512f", "fp32"), ("", "fp32")],
)
def test_type_is_that_which_the_processor_has_units_for(
    flags: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: avx512_bf16_too\n")
    found = machine._cpu_flags(cpuinfo)
    monkeypatch.setattr(machine, "_cpu_flags", lambda: found)
    name, reason = machine.choose_precision("auto", torch.device("cpu"))
    units = "with" if expected == "bf16" else "without"
    assert (name, reason) == (expected, f"cpu {units} bf16 units")
    assert machine.choose_precision("fp32", torch.device("cpu")) == ("fp32", "asked for")
    name, reason = machine.choose_precision("bf16", torch.device("cpu"))
    assert name == "bf16"
    assert ("60 x as slow as fp32" in reason) == (expected == "fp32")


def test_where_the_system_does_not_tell_the_type_is_fp32(tmp_path: Path) -> None:
    assert machine._cpu_flags(tmp_path / "none") == set()
    assert machine.choose_precision("auto", torch.device("meta"))[0] == "fp32"


def test_processor_is_named_as_linux_does_with_its_instructions(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(
        "processor\t: 0\nmodel name\t: AMD EPYC 1\nprocessor\t: 1\nmodel name\t: x\n"
    )
    instructions = torch.backends.cpu.get_cpu_capability()
    cpu = torch.device("cpu")
    assert machine.find_processor(cpu, cpuinfo) == f"AMD EPYC 1, {instructions}"
    assert machine.find_processor(cpu, tmp_path / "none").endswith(f", {instructions}")
