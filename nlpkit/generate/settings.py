"""The settings of decoding. Imports no torch, so that a command line is checked quickly."""

from typing import Annotated

from pydantic import Field, model_validator

from nlpkit.config import FrozenConfig, LengthPenalty, LengthPenaltyForm

# Logits that are divided or multiplied by it stay finite.
Factor = Annotated[float, Field(ge=1e-10, le=1e10)]


class Settings(FrozenConfig):
    """Greedy by default; beams with `beam`; sampling with `temperature`, `top_k` or `top_p`."""

    max_new_tokens: int | None = Field(
        None, ge=1, description="most tokens to add; default 128, or half of what the model takes"
    )
    min_new_tokens: int = Field(0, ge=0, description="tokens before an end token or a stop")
    beam: int = Field(1, ge=1, description="beams kept at each step; 1 is greedy")
    nbest: int = Field(1, ge=1, description="answers for each input, best first")
    length_penalty: LengthPenalty = Field(
        1.0, description="beams are ranked by log-probability / length ** this"
    )
    length_penalty_form: LengthPenaltyForm = Field(
        "power", description="gnmt: they are by log-probability / ((5 + length) / 6) ** this"
    )
    temperature: Factor | None = Field(None, description="sampling: divides the logits")
    top_k: int | None = Field(None, ge=1, description="sampling: only from the k most probable")
    top_p: float | None = Field(
        None, ge=1e-10, le=1, description="sampling: only from the fewest tokens with this share"
    )
    repetition_penalty: Factor = Field(
        1.0,
        description="above 1, tokens of the output become less probable, and those of a text that "
        "it continues (not CPM-Ant's)",
    )
    repetition_window: int | None = Field(
        None, ge=1, description="the repetition penalty counts the last so many tokens; default all"
    )
    seed: int = Field(
        0,
        ge=0,
        lt=2**63,
        description="sampling: the seed, used together with the number of the input",
    )
    stop: list[str] = Field(default_factory=list, description="texts at which an answer ends")
    blank: str = Field(
        "<blank>",
        min_length=1,
        description="marks a token to fill in, in models that can; <blank:5> is five",
    )

    @property
    def samples(self) -> bool:
        """Return whether tokens are drawn."""
        return not (self.temperature is None and self.top_k is None and self.top_p is None)

    def divisor(self, length: int) -> float:
        """Return what the log-probability of a beam of this length is divided by."""
        base = length if self.length_penalty_form == "power" else (5 + length) / 6
        return float(base**self.length_penalty)

    def without_effect(self) -> dict[str, str]:
        """See `FrozenConfig`."""
        of_beams = ("length_penalty", "length_penalty_form") if self.beam == 1 else ()
        greedy = dict.fromkeys(of_beams, "without --beam")
        window = "without --repetition-penalty"
        repeated = {"repetition_window": window} if self.repetition_penalty == 1 else {}
        drawn = {} if self.samples else {"seed": "without --temperature, --top-k or --top-p"}
        return greedy | repeated | drawn

    @model_validator(mode="after")
    def _consistent(self) -> "Settings":
        if self.samples and self.beam > 1:
            raise ValueError("beam: excludes --temperature, --top-k and --top-p; choose one")
        if not self.samples and self.nbest > self.beam:
            raise ValueError(
                f"nbest: {self.nbest} answers need a beam of at least {self.nbest}, or sampling"
            )
        if self.max_new_tokens is not None and self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens: {self.min_new_tokens} is more than "
                f"--max-new-tokens {self.max_new_tokens}"
            )
        if "" in self.stop:
            raise ValueError("stop: an empty text is in every answer")
        return self
