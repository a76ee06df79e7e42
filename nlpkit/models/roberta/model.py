"""RoBERTa (Liu et al. 2019, arXiv 1907.11692) over packed sequences, in transformers' layout.

BERT's encoder without token types and without a head for pairs. The first token of a sequence has
position `padding_idx` + 1. The head of masked tokens always has GELU.
"""

from nlpkit.models.formats import encoder_format
from nlpkit.models.layers.embeddings import Embeddings
from nlpkit.models.layers.encoder import UntypedEncoder
from nlpkit.models.layers.head import TaskHead
from nlpkit.models.roberta import Config

LORA_TARGETS = ("query", "value")  # Hu et al. 2021, sec. 4.2
TASK_HEADS = {  # transformers' models with a task's layer; its multiple choice reads a pooler
    "sequence_classification": TaskHead.of_two(
        "ForSequenceClassification", "classifier.out_proj", "classifier.dense"
    ),
    "token_classification": TaskHead("ForTokenClassification", "classifier"),
    "question_answering": TaskHead("ForQuestionAnswering", "qa_outputs"),
}


class Model(UntypedEncoder):
    """RoBERTa with its head of masked tokens."""

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        width, rows = config.hidden_size, config.position_rows
        embeddings = Embeddings(config, width, rows, config.type_vocab_size)
        super().__init__(config, vocab_size, backend, embeddings)
        self.make_head(config, vocab_size, width, "gelu")
        self.reset_parameters()


FORMAT = encoder_format.make_roberta("roberta.", "RobertaForMaskedLM")
