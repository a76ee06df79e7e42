"""Numbers of parameters without torch, for `Config.count_parameters` of the families.

They are the sizes of the modules in `model.py`, which tests count on the meta device.
"""

from collections.abc import Sequence
from math import prod

from nlpkit.attention.contract import Choice

GATES = {"rnn": 1, "lstm": 4, "gru": 3}  # products of a cell for each number of the state


def linear(inputs: int, outputs: int, bias: bool = True) -> int:
    """Return the parameters of `nn.Linear`."""
    return outputs * (inputs + bias)


def norm(width: int) -> int:
    """Return the parameters of `nn.LayerNorm`."""
    return 2 * width


def transformer_layer(width: int, inside: int) -> int:
    """Return the parameters of attention, two feed-forward layers and two norms, all with bias."""
    feed_forward = linear(width, inside) + linear(inside, width)
    return 4 * linear(width, width) + feed_forward + 2 * norm(width)


def recurrent(cell: str, inputs: int, width: int, layers: int, directions: int = 1) -> int:
    """Return the parameters of torch's recurrent layers, with their two biases."""
    later = (layers - 1) * (directions * width + width + 2)
    return directions * GATES[cell] * width * (inputs + width + 2 + later)


def attention_tensors(choices: Sequence[Choice], layers: int, heads: int, head_dim: int) -> int:
    """Return the parameters that the kinds of attention learn, as `AttentionTensors` has them."""
    total, shared = 0, set()
    for number in range(layers):
        choice = choices[number % len(choices)]
        for name, tensor in choice.module.tensors(choice.config, heads, head_dim).items():
            if not tensor.shared or (choice, name) not in shared:
                total += prod(tensor.shape)
            if tensor.shared:
                shared.add((choice, name))
    return total
