"""Chooses between the backends of a CPU by their times, on the requests of a real batch.

Which one is faster depends on the mask, the type, the lengths and the machine. With 16-bit numbers
torch's kernel is the faster one where sequences are long or of equal length; it costs much for each
new length.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import cast

import torch

from nlpkit import registry
from nlpkit.attention.contract import Backend, Request

CANDIDATES = ("cpu_flash", "sdpa")
_LAYERS, _ROUNDS = 2, 2
_GAIN = 0.7  # of the usual one's time; a smaller gain is there in one run, not in the next
# Numbers of scores times width of a head. Fewer take milliseconds, and noise would choose.
_FEWEST, _MOST = 2**22, 2**33

_requests: ContextVar[list[Request] | None] = ContextVar("requests", default=None)


@contextmanager
def noting() -> Iterator[list[Request]]:
    """Give a list; the requests for which `auto` chooses are added to it."""
    noted: list[Request] = []
    token = _requests.set(noted)
    try:
        yield noted
    finally:
        _requests.reset(token)


def note(request: Request) -> None:
    """Add a request to the list of `noting`, if there is one."""
    noted = _requests.get()
    if noted is not None:
        noted.append(request)


def fastest(requests: Sequence[Request], usual: Callable[[Request], str]) -> tuple[str, str] | None:
    """Return the backend to prefer for these requests, and the reason in words.

    `usual` is the backend that a request gets without it. None if both are as fast, if there is
    nothing to choose, or if the batch is too small to tell.
    """
    both = [request for request in requests if _is_for_both(request)]
    work = sum(map(_work, both))
    if not both or work < _FEWEST:
        return None
    if work > _MOST:  # too long to measure: no backend but torch's needs no mask of all pairs
        if all(request.kernel for request in both) and {usual(each) for each in both} != {"sdpa"}:
            return "sdpa", "long sequences, no mask"
        return None
    seconds = {name: [_seconds(request, name) for request in both] for name in CANDIDATES}
    before = sum(seconds[usual(request)][place] for place, request in enumerate(both))
    best = min(CANDIDATES, key=lambda name: sum(seconds[name]))
    share = sum(seconds[best]) / before
    if share > _GAIN:
        return None
    return best, f"{share:.2f} of the usual backend's time on the first batch"


def _backend(name: str) -> Backend:
    return cast(Backend, registry.load("attention/backends", name))


def _is_for_both(request: Request) -> bool:
    # Where there is dropout, torch has no kernel of its own.
    return request.device.type == "cpu" and not (
        request.dropout or any(_backend(name).refuses(request) for name in CANDIDATES)
    )


def _work(request: Request) -> int:
    pairs = sum(a * b for a, b in zip(request.layout.lengths, request.keys.lengths, strict=True))
    return pairs * request.heads * request.head_dim


def _seconds(request: Request, name: str) -> float:
    """Return the least processor time of the forward and backward passes of some layers."""
    learned = {key: each.detach().requires_grad_() for key, each in request.tensors.items()}
    request = replace(request, tensors=learned)
    shape = request.heads, request.head_dim
    drawn = torch.Generator().manual_seed(0)
    numbers = [request.layout.total, request.keys.total, request.keys.total]
    q, k, v = (
        torch.randn(number, *shape, generator=drawn).to(request.dtype).requires_grad_()
        for number in numbers
    )
    found = []
    with torch.enable_grad():
        for _ in range(_ROUNDS):
            start = time.process_time()
            attend = _backend(name).prepare(request)
            outs = [attend(q, k, v) for _ in range(_LAYERS)]
            torch.stack([out.sum() for out in outs]).sum().backward()
            found.append(time.process_time() - start)
    return min(found)
