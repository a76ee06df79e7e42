"""Character error rate: edits from reference to hypothesis, divided by reference characters.

Levenshtein distance over characters (Unicode code points) at corpus level: the sum of edits is
divided by the sum of reference characters. As in `jiwer.process_characters`, white space around a
line is removed, and spaces inside a line count as characters, except with `ignore_spaces`.
"""

from nlpkit.contracts.metric import Option
from nlpkit.score.counts.error_rate import make_error_rate

LOWER_IS_BETTER = True
OPTIONS = (
    Option("lowercase", False, "compare in lower case", ("-lc",), type=bool),
    Option("ignore_spaces", False, "ignore white space, as is usual for Chinese", type=bool),
)


def _tokens(line: str, *, lowercase: bool = False, ignore_spaces: bool = False) -> str:
    line = line.lower() if lowercase else line
    return "".join(line.split()) if ignore_spaces else line.strip()


def _signature(*, lowercase: bool = False, ignore_spaces: bool = False) -> str:
    case, spaces = "lc" if lowercase else "mixed", "no" if ignore_spaces else "yes"
    return f"case:{case}|tok:char|spaces:{spaces}|level:corpus"


_RATE = make_error_rate("CER", "characters", _tokens, _signature)
score, sentences = _RATE.score, _RATE.sentences
statistics, from_sums = _RATE.statistics, _RATE.from_sums
