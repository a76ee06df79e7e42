"""Imports what a process of the command line needs; see `_processes`."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import nlpkit.runs.pretrain
from nlpkit import verbs
from tests import _tiny  # noqa: F401 - so that a child imports nothing

assert nlpkit.runs.pretrain
assert verbs.build()  # imports every verb
