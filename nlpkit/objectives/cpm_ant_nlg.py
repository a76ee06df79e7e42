"""CPM-Ant's text generation task: each row has an input and the target to be generated.

OpenBMB/CPM-Live, branch cpm-ant, `examples/tune.py`. The soft prompt of the task, `<s>` and the
input are encoded; the target and `</s>` are decoded. All text is of one type.

Differs from the original: an input that is too long loses its start, but never `<s>`.
"""

from typing import ClassVar

from pydantic import Field as Setting

from nlpkit.config import FrozenConfig
from nlpkit.data.template import TextOf
from nlpkit.json_types import JsonMapping
from nlpkit.objectives.examples.soft_prompt import GENERATION_SEGMENT
from nlpkit.objectives.tasks.choices import MEANING, Choices
from nlpkit.objectives.tasks.segments import Segment, WrittenSegments


class Config(FrozenConfig):
    """The columns of a row, and the maximum length of an example."""

    max_length: int = Setting(
        512, gt=2, description="longest example: prompt, <s>, input, target, </s> together"
    )
    task_id: int | None = Setting(
        None, ge=0, description="soft prompt of the task; default: the prompt of generation"
    )
    input: TextOf = Setting("input", description="column of the input, or a template")
    target: TextOf = Setting(
        "target", description="column of the text to be generated, or a template"
    )
    choices: Choices | None = Setting(None, description=MEANING)
    learn_unknown: bool = Setting(
        False, description="whether <unk> in a target is learned, although it is never generated"
    )

    EARLIER: ClassVar[JsonMapping] = {"learn_unknown": True}


class Objective(WrittenSegments):
    """Examples and loss of CPM-Ant's generation tasks."""

    term = "nlg"
    parts = ("nlg",)

    @classmethod
    def compose(cls, config: Config) -> tuple[Segment, Segment]:
        """Return the input, which is encoded, and the target."""
        task, segment = config.task_id, GENERATION_SEGMENT
        return (
            Segment(text=config.input, type=segment, prompt=task, end=False),
            Segment(text=config.target, type=segment, decode=True, begin=False),
        )
