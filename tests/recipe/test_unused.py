"""Settings that are written, but have no effect beside the others, are warned of with their place.

Places were counted by hand in the text below, line and column from 1.
"""

from pathlib import Path

import pytest

from nlpkit import registry
from nlpkit.config import part_config
from nlpkit.errors import RecipeError
from nlpkit.recipe import Resolved, load, packaged, parse

CLM = """\
name: x
model: {family: gpt, attention_dropout: 0.0}
tokenizer: {kind: bpe, vocab_size: 500}
objective: {name: clm}
data: {train: a.txt}
train: {steps: 9, warmup_steps: 3, min_lr_ratio: 0.1}
eval: {beam: 4}
attention: {kind: aft, window: 8}
"""
PAIRS = """\
name: x
model: {family: seq2seq, window_size: 4}
tokenizer: {kind: bpe, vocab_size: 500}
objective: {name: seq2seq}
data: {train: {files: [a.en, a.zh]}, format: parallel}
train: {steps: 9, schedule: constant}
eval: {length_penalty: 0.6, length_penalty_form: gnmt}
"""
LAYERS = "attention={layers: [{kind: fixed, pattern: fa1, summary: 8}, {kind: causal}]}"
SHORT = "with beam 1, without --beam of nlpkit eval"


def resolve(text: str, *overrides: str) -> Resolved:
    return parse(text.encode(), "r.yaml", Path("."), overrides)


@pytest.mark.parametrize(
    ("text", "overrides", "warnings"),
    [
        (
            CLM,
            (),
            [
                "r.yaml:6:50: train.min_lr_ratio: has no effect with schedule noam",
                "r.yaml:7:14: eval.beam: has no effect with an objective that generates no answers",
                "r.yaml:8:32: attention.window: has no effect with form full",
            ],
        ),
        (
            PAIRS,
            (),
            [
                "r.yaml:2:39: model.window_size: has no effect with window global",
                f"r.yaml:7:24: eval.length_penalty: has no effect {SHORT}",
                f"r.yaml:7:50: eval.length_penalty_form: has no effect {SHORT}",
            ],
        ),
        (
            PAIRS,
            (
                *(
                    "model.window_size=10",
                    "eval.length_penalty=1.0",
                    "eval.length_penalty_form=power",
                    "train.optimizer=sgd",
                ),
                *("train.beta2=0.95", "train.decay_ratio=0.5", "train.average.name=ema"),
                "train.average.every=3",
            ),
            [
                "--set train.beta2: has no effect with optimizer sgd",
                "--set train.decay_ratio: has no effect with schedule constant",
                "--set train.average.every: has no effect with average ema",
            ],
        ),
        (
            CLM,
            (
                "train.schedule=cosine",
                "eval.beam=1",
                "attention.form=local",
                "train.tune=prompt",
                "prompt.tokens=4",
                "train.weight_decay=0.1",
            ),
            ["--set train.weight_decay: has no effect with train.tune: prompt"],
        ),
        # Held-out files are read as they are.
        (
            CLM.replace(
                "train: a.txt", "train: {files: a, weight: 2}, valid: [{files: b, weight: 2}]"
            ),
            ("train.schedule=cosine", "eval.beam=1", "attention.form=local"),
            ["r.yaml:5:65: data.valid.0.weight: has no effect on held-out files"],
        ),
        # Beside what objective clm does not read.
        (
            CLM,
            ("train.schedule=cosine", "eval={max_pairs: 9}", "attention.form=local"),
            ["--set eval: eval.max_pairs: has no effect without eval.pairs"],
        ),
        (
            CLM,
            ("train.schedule=cosine", "eval={max_pairs: all}", "attention.form=local"),
            ["--set eval: eval.max_pairs: has no effect without eval.pairs"],
        ),
        # The search of an experiment.
        (
            CLM,
            ("train.schedule=cosine", "eval={max_pairs: all, pairs: null}", "attention.form=local"),
            [],
        ),
        # What has an effect.
        (CLM, ("train.schedule=cosine", "eval.beam=1", "attention.form=local"), []),
        (PAIRS, ("model.window=local_m", "eval.beam=2"), []),
        # The default changes nothing.
        (
            PAIRS,
            ("model.window_size=10", "eval.length_penalty=1.0", "eval.length_penalty_form=power"),
            [],
        ),
        (
            CLM.replace("gpt", "bert")
            .replace("clm", "mlm")
            .replace("aft, window", "relative, memory"),
            ("train.schedule=linear", "eval.beam=1"),
            [
                "r.yaml:8:37: attention.memory: has no effect outside of family xlnet, which has "
                "model.memory"
            ],
        ),
        # From the command line, in a list.
        (
            CLM,
            ("train.schedule=linear", "eval.beam=1", LAYERS),
            [
                "--set attention: attention.layers.0.summary: has no effect with pattern fa1, the "
                "block alone"
            ],
        ),
    ],
)
def test_setting_without_effect_is_warned_of(text, overrides, warnings) -> None:
    assert list(resolve(text, *overrides).warnings) == warnings


def test_no_shipped_recipe_has_a_setting_without_effect() -> None:
    assert {name: load(name).warnings for name in packaged()} == dict.fromkeys(packaged(), ())


def test_group_of_rows_of_which_none_are_held_out_is_warned_of() -> None:
    (said,) = load("gpt1_classify", ["data.valid_group=text"]).warnings
    assert said == "--set data.valid_group: has no effect without valid_fraction"
    sets = ["data.valid_group=text", "data.valid_fraction=0.1"]
    assert load("gpt1_classify", sets).warnings == ()


def test_threshold_of_questions_that_have_an_answer_is_warned_of() -> None:
    (line,) = load("bert_qa", ["objective.null_threshold=1.5"]).warnings
    assert line.startswith("--set objective.null_threshold: has no effect without no_answer: true")
    assert not load(
        "bert_qa", ["objective.null_threshold=1.5", "objective.no_answer=true"]
    ).warnings


def test_filter_of_images_that_are_not_resized_is_warned_of() -> None:
    (line,) = load("vit", ["objective.resample=bicubic"]).warnings
    assert line.startswith("--set objective.resample: has no effect without resize: true")
    assert not load("vit", ["objective.resample=bicubic", "objective.resize=true"]).warnings


@pytest.mark.parametrize("folder", ["models", "objectives", "attention/kinds", "train/optimizers"])
def test_settings_said_to_have_no_effect_exist(folder: str) -> None:
    for name in registry.names(folder):
        made = part_config(folder, name)
        required = [each for each, field in made.model_fields.items() if field.is_required()]
        if not required:
            assert {*made().without_effect()} <= {*made.model_fields}, name


ROWS = (
    CLM.replace("gpt,", "bert,")
    .replace("{name: clm}", "{name: classification, lm_weight: 0.3}")
    .replace("eval: {beam: 4}\nattention: {kind: aft, window: 8}\n", "")
    .replace("a.txt", "a.tsv")
    .replace(", min_lr_ratio: 0.1", "")
)
OF_TASK = ("objective.lm_weight=0",)
MODERN = "{family: modernbert, local_theta: 500.0, global_theta: 900.0}"
ORDER = "without an objective on the order of texts, such as sop"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ((), "r.yaml:4:46: objective.lm_weight: has no effect with a model that is not causal"),
        (("objective.lm_weight=0",), ""),
        (("objective.name=tagging", "model.family=gpt2"), ""),
        (
            ("objective={name: tagging, learn_unknown: true}",),
            "--set objective: objective.learn_unknown: has no effect with a model that is not "
            "causal",
        ),
        (
            ("model.family=gpt2", "objective.lm_weight=0", "objective.learn_unknown=true"),
            "--set objective.learn_unknown: has no effect with lm_weight 0",
        ),
        (
            ("model={family: albert, pair_dropout: 0.2}", "objective={name: wwm}"),
            f"--set model: model.pair_dropout: has no effect {ORDER}",
        ),
        (("model={family: albert, pair_dropout: 0.2}", "objective={name: sop}"), ""),
        (
            ("model={family: deberta_v2, embedding_sharing: es}", "objective={name: mlm}"),
            "--set model: model.embedding_sharing: has no effect without generator_layers",
        ),
        (
            ("model={family: deberta_v2, generator_layers: 0.5}", "objective.lm_weight=0"),
            "--set model: model.generator_layers: has no effect in a task, without a generator",
        ),
        (
            ("model={family: electra, generator_heads: 2, generator_size: null}", *OF_TASK),
            "--set model: model.generator_heads: has no effect without generator_size",
        ),
        (
            ("model={family: electra, tie: false}", *OF_TASK),
            "--set model: model.tie: has no effect in a task, without a generator",
        ),
        (("model={family: electra, tie: false}", "objective={name: rtd}"), ""),
        (
            (
                *("model={family: vit, pooler: true, pooler_act: relu}", "tokenizer=null"),
                "objective={name: image_classification}",
            ),
            "--set model: model.pooler: has no effect in a task, whose model has no pooler\n"
            "--set model: model.pooler_act: has no effect in a task, whose model has no pooler",
        ),
        (
            (f"model={MODERN}", "objective={name: clm}", "attention={kind: causal}"),
            "--set model: model.local_theta: has no effect where no layer sees a window",
        ),
        (
            (f"model={MODERN}", "objective={name: clm}", "attention={kind: local_window}"),
            "--set model: model.global_theta: has no effect where all layers see a window",
        ),
        ((f"model={MODERN}", "objective={name: mlm}"), ""),
    ],
)
def test_setting_that_model_or_objective_ignores_is_warned_of(overrides, said: str) -> None:
    assert "\n".join(resolve(ROWS, *overrides).warnings) == said


def test_sources_have_the_vocabulary_of_their_tokenizer() -> None:
    with pytest.raises(RecipeError) as caught:
        resolve(PAIRS, "model={family: seq2seq, source_vocab_size: 9}")
    assert str(caught.value) == (
        "--set model: model.source_vocab_size: is that of the tokenizer of sources, "
        "tokenizer.source; remove the setting"
    )


def test_settings_of_evaluation_without_held_out_data_are_warned_of() -> None:
    train = "train: {steps: 9, schedule: constant, eval_every: 3}"
    text = "\n".join([*CLM.splitlines()[:5], train])
    why = "has no effect where nothing is held out, and so nothing is evaluated"
    assert list(resolve(text, "eval.baseline=2").warnings) == [
        f"r.yaml:6:51: train.eval_every: {why}",
        f"--set eval.baseline: {why}",
    ]
    best = ("objective={name: tagging}", "train.best_by=f1")
    assert f"--set train.best_by: {why}" in resolve(text, *best).warnings
    assert f"--set train.patience: {why}" in resolve(text, "train.patience=2").warnings
    assert not resolve(text, "eval.baseline=2", "data.valid_fraction=0.1").warnings
