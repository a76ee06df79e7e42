"""The contract of `attention/backends/NAME.py`: how attention over a mask is computed.

N packed tokens, K keys, H heads of queries, G of keys and values, D width of a head.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from nlpkit.contracts.request import Request


class Backend(Protocol):
    """The interface of every backend."""

    GROUPED: bool = False  # whether it takes fewer heads of keys; else it gets them repeated

    @abstractmethod
    def refuses(self, request: Request) -> str | None:
        """Return why the backend does not support this request, or None."""

    @abstractmethod
    def prepare(self, request: Request) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """Return `attend(q, k, v)`: (N, H, D), (K, G, D), (K, G, D) -> (N, H, D)."""

    def suits(self, request: Request) -> bool:
        """Return whether `auto` should ask it before those that do not suit the request."""
        return True


CONTRACTS = (Backend,)
