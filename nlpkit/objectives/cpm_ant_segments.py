"""CPM-Ant's segments composed freely: texts of a row in order, of which the last one is written.

OpenBMB/CPM-Live, branch cpm-ant-plus: summaries (task 3) and translations (5, 6) are an encoded
segment of type 1 and a decoded one of type 2; questions (4) are a passage of type 1, a question of
type 2 and an answer of type 3. A segment that is decoded without a loss is a turn of a dialogue, or
a prefix of a causal model. `cpm_ant_nlg` is the composition of two segments of one type.

Differs from the original: texts that are too long are cut and counted, not left out in silence;
unknown tokens stay in the texts, and are no targets.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field as Setting
from pydantic import model_validator

from nlpkit.config import FrozenConfig
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.data.template import is_template
from nlpkit.objectives.examples.soft_prompt import PromptSettings
from nlpkit.objectives.tasks.choices import MEANING, Choices
from nlpkit.objectives.tasks.segments import Segment, SegmentTask, WrittenSegments


def _input_and_target() -> list[Segment]:
    return [Segment(text="input", type=1), Segment(text="target", type=2, decode=True)]


class Config(FrozenConfig):
    """The segments, and the maximum length of an example."""

    max_length: int = Setting(
        512, gt=2, description="longest example: prompts, <s>, texts and </s> together"
    )
    segments: list[Segment] = Setting(
        default_factory=_input_and_target,
        min_length=2,
        description="the segments in order: encoded ones, then decoded ones; the last is written",
    )
    choices: Choices | None = Setting(None, description=f"of the last segment, {MEANING}")
    learn_unknown: bool = Setting(
        False, description="whether <unk> in a target is learned, although it is never generated"
    )

    @property
    def target(self) -> str:
        """The column or template of the text that is written."""
        return self.segments[-1].text

    @model_validator(mode="after")
    def _ends_in_target(self) -> Config:
        if not any(each.learned for each in self.segments):
            raise ValueError(
                "segments: none is decoded and has a loss, so nothing would be learned; the last "
                "one needs decode: true"
            )
        decoded = [number for number, each in enumerate(self.segments) if each.decode]
        for number, each in enumerate(self.segments):
            if number > decoded[0] and not each.decode:
                raise ValueError(
                    f"segments.{number}: an encoded segment behind a decoded one, segments."
                    f"{decoded[0]}, whose length would be told by its positions; put it in front, "
                    "or decode it (loss: false)"
                )
        last = len(self.segments) - 1
        if not self.segments[-1].learned:
            raise ValueError(
                f"segments.{last}.loss: the last segment is the one that is written; without a "
                "loss it is of no use"
            )
        if not self.segments[-1].end:
            raise ValueError(
                f"segments.{last}.end: the last segment needs </s>, where the written text ends"
            )
        return self


class Objective(WrittenSegments):
    """Examples and loss of a composition of segments."""

    term = "segments"
    parts = ("segments",)
    needs = (*SegmentTask.needs, "segment_types")
    prompt_setting = "segments.{}.prompt"

    def __init__(self, config: Config, tokenizer: Tokenizer, model_config: PromptSettings):
        super().__init__(config, tokenizer, model_config)
        count = model_config.setting("segment_types")
        for number, each in enumerate(config.segments):
            if each.type >= count:
                raise ValueError(
                    f"objective.segments.{number}.type: {each.type}, but the model has the "
                    f"segment types 0 to {count - 1}"
                )

    @classmethod
    def compose(cls, config: Config) -> Sequence[Segment]:
        return config.segments

    @classmethod
    def names(cls, config: Config) -> Sequence[str]:
        """Return the columns of the texts; of a template, `segment`."""
        texts = (each.text for each in config.segments)
        return ["segment" if is_template(text) else text for text in texts]
