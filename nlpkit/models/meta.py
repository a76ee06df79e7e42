"""Models on the meta device: they have names and shapes, but no memory and no initial values."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nlpkit.config import FrozenConfig


@contextmanager
def on_meta() -> Iterator[None]:
    """Make modules on the meta device, and draw no initial values, in this context.

    To draw none on that device takes torch long, and an import of its compiler (0.7 s).
    """
    with torch.device("meta"), _NoInit():
        yield


def meta_model(model: Callable[..., nn.Module], config: FrozenConfig, vocab_size: int) -> nn.Module:
    """Return a family's `Model` on the meta device."""
    with on_meta():
        return model(config, vocab_size, "auto")


class _NoInit(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if func in _DRAWING:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


_DRAWING = {
    *(Tensor.normal_, Tensor.uniform_),
    *(nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_),
}
