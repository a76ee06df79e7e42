"""CPM-Ant's tasks: the text of a row behind a soft prompt."""

from typing import Any

from nlpkit.contracts.task import Task, Wording
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.data.template import as_template
from nlpkit.objectives.examples import soft_prompt


class PromptTask(Task):
    """A base of CPM-Ant's tasks, each with a soft prompt of its own before the text of a row."""

    inputs = tuple(soft_prompt.INPUTS)
    needs = ("prompt_length", "prompts", "prompt_types")

    def __init__(self, config: Any, tokenizer: Tokenizer, model_config: soft_prompt.PromptSettings):
        super().__init__(config, tokenizer, model_config)
        number, count = config.task_id, model_config.prompt_types
        if number is None:
            number = model_config.prompts.generation
        if number >= count:
            raise ValueError(f"objective.task_id: {number}, but the model has {count} prompts")
        self.prompt = soft_prompt.prompt_ids(number, tokenizer.vocab_size, model_config)
        self.bos_id, self.eos_id = soft_prompt.text_frame(tokenizer)

    def room(self, others: int, what: str) -> int:
        """Return the most tokens of text beside the prompt and `others`, which are `what`.

        Raises:
            ValueError: there is no place for text.
        """
        room: int = self.config.max_length - len(self.prompt) - others
        if room < 1:
            raise ValueError(
                f"objective.max_length: {self.config.max_length} leaves no tokens for text after "
                f"{len(self.prompt)} prompt tokens, <s> and {what}"
            )
        return room

    @classmethod
    def wording(cls, config: Any) -> Wording:
        """Return the input, which an answer follows, as in training."""
        return Wording(as_template(config.input), answer_prefix="", separator="\n")
