"""Imports what a process of the command line needs; see `_forks`."""

import contextlib
import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

from transformers import AutoTokenizer, CpmAntForCausalLM, OpenAIGPTLMHeadModel

import nlpkit.evaluate.held_out
import nlpkit.generate.texts
import nlpkit.plan.probe
import nlpkit.report.page
import nlpkit.runs.pretrain
import nlpkit.selftest
from nlpkit import recipe, verbs
from tests import _tiny

with contextlib.suppress(ImportError):  # optional
    import matplotlib.pyplot

    assert matplotlib.pyplot

# So that a child imports nothing.
assert AutoTokenizer
assert CpmAntForCausalLM
assert OpenAIGPTLMHeadModel
assert nlpkit.runs.pretrain
assert _tiny
assert verbs.build()  # every verb
assert [recipe.load(name) for name in recipe.packaged()]  # every part
