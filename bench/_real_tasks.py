"""The bases and tasks of `bench/tasks.py`, on the data of ../shared/data."""

from _runs import Task

BASES = {
    "english": (
        "gpt1",
        ["en_lm/wikitext2.valid.txt", "en_lm/wikitext2.test.txt", "en_lm/c4_demo.jsonl"],
        ["tokenizer.vocab_size=8000", "train.steps=1200", "train.eval_every=300"],
    ),
    "chinese": (
        "cpm_ant",
        ["zh_lm/clue_small.txt", "zh_lm/wiki_cmrc_contexts.jsonl", "zh_lm/poetry_songci.txt"],
        [
            *("train.steps=1600", "train.schedule=cosine", "train.warmup_ratio=0.06"),
            "train.eval_every=400",
        ],
    ),
}

TASKS = [
    Task("SST-2", "english", "gpt1_classify", "en_task/sst2", "accuracy", "label"),
    Task("CoLA", "english", "gpt1_classify", "en_task/cola", "mcc", "label"),
    Task("SciTail", "english", "gpt1_entail", "en_task/scitail", "accuracy", "label"),
    Task(
        "SICK",
        "english",
        "gpt1_similarity",
        "en_task/sick",
        "pearson",
        None,
        sets=["objective.regression=true", "objective.label=score"],
    ),
    Task(
        "COPA",
        "english",
        "gpt1_choice",
        "en_task/copa",
        "accuracy",
        "label",
        epochs=5,
        sets=["objective.context=premise", "objective.question=question"],
    ),
    Task(
        "ChnSentiCorp",
        "chinese",
        "cpm_ant_nlu",
        "zh_task/chnsenticorp",
        "accuracy",
        "label",
        epochs=2,
        sets=["objective.input=text", "objective.target=label", "objective.choices=[差评, 好评]"],
    ),
    Task("CCPM", "chinese", "cpm_ant_nlu", "zh_task/ccpm", "accuracy", "target"),
    Task(
        "C3",
        "chinese",
        "cpm_ant_nlu",
        "zh_task/c3",
        "accuracy",
        "target",
        epochs=0.5,
        sets=["objective.max_length=256"],
    ),
    Task(
        "KdConv",
        "chinese",
        "cpm_ant_nlg",
        "zh_task/kdconv",
        "bleu:tokenize=zh",
        None,
        shown=("loss", "bleu:tokenize=zh"),
    ),
    Task(
        "Ape210K",
        "chinese",
        "cpm_ant_nlg",
        "zh_task/ape210k",
        "exact_match",
        None,
        shown=("loss", "exact_match"),
    ),
]
