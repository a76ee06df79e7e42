"""Models without numbers: on the meta device, for their names and shapes or before a checkpoint."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


@contextmanager
def undrawn() -> Iterator[None]:
    """Make modules on the meta device, and draw no initial values, in this context.

    To draw none on that device takes torch long, and an import of its compiler (0.7 s).
    """
    with torch.device("meta"), _Undrawn():
        yield


class _Undrawn(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DRAWING:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


_DRAWING = {
    *(Tensor.normal_, Tensor.uniform_),
    *(nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_),
}
