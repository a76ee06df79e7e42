"""Causal language modelling of a model that is told how far the run is: `progress` is an input."""

from nlpkit.objectives import clm

Config = clm.Config


class Objective(clm.Objective):
    """Examples and loss of `clm`."""

    inputs = ("input_ids", "progress")
