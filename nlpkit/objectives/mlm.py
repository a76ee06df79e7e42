"""Masked language modelling (Devlin et al. 2018, arXiv:1810.04805, sec. 3.1, task 1).

A share of the tokens are targets, 15 % by default. Of these 80 % become the mask token, 10 % a
random token, 10 % stay as they are. Special tokens are neither targets nor drawn. The settings
follow fairseq: `random` and `unmask` are shares of the targets, and the others are masked.
`unmask: 0` is Huebner et al. 2021 (CoNLL, sec. 3), `final_rate` a rate that follows the run (Ankner
et al. 2023, arXiv:2305.15096). RoBERTa cuts its text with `contiguous` (Liu et al. 2019,
arXiv:1907.11692, sec. 4.2, FULL-SENTENCES).

Alone it makes `[CLS] piece [SEP]`; after another objective in a list it masks that one's examples.
"""

from nlpkit.objectives.examples.masking import MaskConfig, TextMasking


class Config(MaskConfig):
    """How text is cut, how many tokens are targets, and what becomes of them."""


class Objective(TextMasking):
    """Examples and loss of masked language modelling."""
