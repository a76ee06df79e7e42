"""A few rows of our own in the layouts in which benchmarks are published, and their recipes.

Column names, headers, nesting and labels are those of the published files; the rows are not theirs.
"""

import json
from pathlib import Path
from typing import NamedTuple


class Published(NamedTuple):
    """A file, the sections of a recipe that read it, and what its rows become.

    `texts` and `label` are those of the first row, by hand; `rows` is their number.
    """

    file: str
    content: str
    objective: dict
    data: dict
    rows: int
    texts: tuple[str, ...]
    label: object


def _lines(*rows: dict) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


_COLA = "gj04\t1\t\tOur friends went home.\ngj04\t0\t*\tHome friends our went.\n"
_SST2 = "sentence\tlabel\na warm , funny film \t1\nflat and dull \t0\n"
_MRPC = (
    "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    '1\t7\t8\tHe said " no " .\tHe refused .\n0\t9\t10\tIt rained .\tShe left .\n'
)
_QQP = (
    "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    "1\t2\t3\tHow do I swim?\tHow can I swim?\t1\n4\t5\t6\tWhat is snow?\tWho sings?\t0\n"
)
_STSB = (
    "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
    "0\tmain\tMSR\t2012\t1\tnone\tnone\tA plane rises.\tA plane takes off.\t5.000\n"
    "1\tmain\tMSR\t2012\t4\tnone\tnone\tA man eats.\tA dog runs.\t0.400\n"
)
_MNLI = (
    "index\tpromptID\tpairID\tgenre\tsentence1_parse\tsentence2_parse\tsentence1\tsentence2\t"
    "label1\tgold_label\n"
    "0\t1\t1n\tfiction\t( )\t( )\tShe ran home.\tShe moved.\tentailment\tentailment\n"
    "1\t2\t2n\tfiction\t( )\t( )\tShe ran home.\tShe slept.\tcontradiction\tcontradiction\n"
)
_RTE = (
    "index\tsentence1\tsentence2\tlabel\n"
    "0\tBirds sang.\tThere was song.\tentailment\n1\tBirds sang.\tIt rained.\tnot_entailment\n"
)
_SNLI = _lines(
    {"gold_label": "-", "sentence1": "A man sits.", "sentence2": "He waits."},
    {"gold_label": "neutral", "sentence1": "A man sits.", "sentence2": "He is old."},
    {"gold_label": "entailment", "sentence1": "A man sits.", "sentence2": "A man."},
)
_OCNLI = _lines(
    {"level": "easy", "sentence1": "他在跑步。", "sentence2": "他在动。", "label": "entailment",
     "label0": None, "genre": "tv", "prem_id": "tv_1", "id": 0},
    {"level": "hard", "sentence1": "他在跑步。", "sentence2": "他累了。", "label": "-",
     "label0": None, "genre": "tv", "prem_id": "tv_1", "id": 1},
    {"level": "easy", "sentence1": "他在跑步。", "sentence2": "他在睡觉。",
     "label": "contradiction", "label0": None, "genre": "tv", "prem_id": "tv_1", "id": 2},
)  # fmt: skip
_TNEWS = _lines(
    {"label": "108", "label_desc": "news_edu", "sentence": "学校开学了", "keywords": ""},
    {"label": "104", "label_desc": "news_finance", "sentence": "股市上涨", "keywords": "股市"},
)
_CSL = _lines(
    {"id": 1, "abst": "研究了水声通信。", "keyword": ["水声", "通信"], "label": "1"},
    {"id": 2, "abst": "研究了植物。", "keyword": ["星系", "植物"], "label": "0"},
)
_CLUEWSC = _lines(
    {"target": {"span2_index": 4, "span1_index": 0, "span1_text": "小猫", "span2_text": "它"},
     "idx": 0, "label": "true", "text": "小猫饿了它叫"},
    {"target": {"span2_index": 4, "span1_index": 2, "span1_text": "鱼", "span2_text": "它"},
     "idx": 1, "label": "false", "text": "小猫吃鱼它饱了"},
)  # fmt: skip
_BOOLQ = _lines(
    {"question": "is snow cold", "passage": "Snow is frozen water.", "idx": 0, "label": True},
    {"question": "is fire cold", "passage": "Fire burns.", "idx": 1, "label": False},
)
_COPA = _lines(
    {"premise": "The glass fell.", "choice1": "It broke.", "choice2": "It sang.",
     "question": "effect", "idx": 0, "label": 0},
)  # fmt: skip
_C3 = json.dumps(
    [
        [
            ["女：你去哪儿？", "男：去学校。"],
            [
                {"question": "男的去哪儿？", "choice": ["家", "学校", "3"], "answer": "学校"},
                {"question": "谁在问？", "choice": ["女的", "男的"], "answer": "女的"},
            ],
            "1-1",
        ],
        [["今天下雨。"], [{"question": "几个人？", "choice": ["1", "0"], "answer": "0"}], "1-2"],
    ],
    ensure_ascii=False,
    indent=1,
)
_KDCONV = json.dumps(
    [
        {
            "messages": [
                {"message": "知道那首歌吗？"},
                {"message": "知道。", "attrs": [{"attrname": "歌手", "attrvalue": "李"}]},
                {"message": "谁唱的？"},
            ],
            "name": "那首歌",
        },
        {"messages": [{"message": "你好。"}, {"message": "你好呀。"}], "name": "问候"},
    ],
    ensure_ascii=False,
    indent=2,
)
_RACE = json.dumps(
    {
        "answers": ["B", "A"],
        "options": [["red", "green", "blue", "grey"], ["Tom", "Ann", "Bob", "Eve"]],
        "questions": ["The door is _ .", "Who came?"],
        "article": "Tom came to the green door.",
        "id": "high1.txt",
    }
)
_STORY_CLOZE = (
    "InputStoryid,InputSentence1,InputSentence2,InputSentence3,InputSentence4,"
    "RandomFifthSentenceQuiz1,RandomFifthSentenceQuiz2,AnswerRightEnding\n"
    'a-1,Kim was cold.,"She had no coat, none.",She saw a shop.,It was open.,She slept.,'
    "She bought a coat.,2\n"
)
_SWAG = (
    ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
    "0,v1,7,A man sits. He,A man sits.,He,gold,stands up.,flies off.,melts.,sings fish.,0\n"
)
_ARC = _lines(
    {"id": "q1", "question": {"stem": "What melts?", "choices": [
        {"text": "ice", "label": "A"}, {"text": "rock", "label": "B"}]}, "answerKey": "A"},
)  # fmt: skip
_SQUAD = json.dumps(
    {
        "version": "1.1",
        "data": [
            {"title": "Door", "paragraphs": [
                {"context": "The door is green.", "qas": [
                    {"id": "1", "question": "What is green?", "answers": [
                        {"text": "The door", "answer_start": 0}]},
                    {"id": "2", "question": "What colour?", "answers": [
                        {"text": "green", "answer_start": 12}]}]}]},
        ],
    }
)  # fmt: skip
_CSL_TITLE = "to title\t研究了水声通信。\t水声通信研究\nto title\t研究了植物。\t植物\n"

_NLI = {"entailment": "蕴含", "neutral": "中立", "contradiction": "矛盾", "-": None}
_TWO = {"name": "entailment", "premise": "sentence1", "hypothesis": "sentence2"}

PUBLISHED = {
    "cola": Published(
        "train.tsv", _COLA, {"name": "classification", "text": "4", "label": "2"}, {}, 2,
        ("Our friends went home.",), "1"),
    "sst2": Published(
        "train.tsv", _SST2, {"name": "classification", "text": "sentence"}, {}, 2,
        ("a warm , funny film ",), "1"),
    "mrpc": Published(
        "msr.tsv", _MRPC, {"name": "similarity", "text_a": "#1 String", "text_b": "#2 String",
                           "label": "Quality"}, {}, 2,
        ('He said " no " .', "He refused ."), "1"),
    "qqp": Published(
        "train.tsv", _QQP, {"name": "similarity", "text_a": "question1", "text_b": "question2",
                            "label": "is_duplicate", "choices": ["other", "same"]}, {}, 2,
        ("How do I swim?", "How can I swim?"), "same"),
    "stsb": Published(
        "train.tsv", _STSB, {"name": "similarity", "text_a": "sentence1", "text_b": "sentence2",
                             "label": "score", "regression": True}, {}, 2,
        ("A plane rises.", "A plane takes off."), 5.0),
    "mnli": Published(
        "train.tsv", _MNLI, {"name": "classification", "text": "{sentence1}[SEP]{sentence2}",
                             "label": "gold_label"}, {}, 2,
        ("She ran home.", "She moved."), "entailment"),
    "rte": Published("train.tsv", _RTE, _TWO, {}, 2, ("Birds sang.", "There was song."),
                     "entailment"),
    "snli": Published(
        "snli_1.0_train.jsonl", _SNLI,
        _TWO | {"label": "gold_label", "choices": {k: k for k in ("entailment", "neutral")}
                | {"contradiction": "contradiction", "-": None}}, {}, 2,
        ("A man sits.", "He is old."), "neutral"),
    "ocnli": Published("train.50k.json", _OCNLI, _TWO | {"choices": _NLI}, {}, 2,
                       ("他在跑步。", "他在动。"), "蕴含"),
    "ocnli as choices": Published(
        "train.50k.json", _OCNLI,
        {"name": "cpm_ant_nlu", "input": "{sentence1}[SEP]{sentence2}", "target": "label",
         "choices": _NLI}, {}, 2,
        ("他在跑步。[SEP]他在动。", "蕴含", "中立", "矛盾"), 0),
    "tnews": Published(
        "train.json", _TNEWS, {"name": "classification", "text": "sentence",
                               "label": "label_desc"}, {}, 2, ("学校开学了",), "news_edu"),
    "csl": Published(
        "train.json", _CSL, {"name": "classification", "text": ["abst", "{keyword:、}"]}, {}, 2,
        ("研究了水声通信。", "水声、通信"), "1"),
    "cluewsc": Published(
        "train.json", _CLUEWSC,
        {"name": "classification", "label": "label", "choices": {True: "是", False: "否"},
         "text": "{text}[SEP]{target.span2_text}指{target.span1_text}"}, {}, 2,
        ("小猫饿了它叫", "它指小猫"), "是"),
    "boolq": Published(
        "train.jsonl", _BOOLQ,
        {"name": "classification", "text": ["passage", "question"],
         "choices": {True: "yes", False: "no"}}, {}, 2,
        ("Snow is frozen water.", "is snow cold"), "yes"),
    "copa": Published(
        "train.jsonl", _COPA, {"name": "multiple_choice", "context": "premise",
                               "question": "question", "options": ["choice1", "choice2"]}, {}, 1,
        ("The glass fell. effect", "It broke.", "It sang."), 0),
    "c3": Published(
        "c3-d-train.json", _C3,
        {"name": "multiple_choice", "context": "{0:\n}", "question": "question",
         "options": "choice", "label": "answer", "label_as": "text"},
        {"format": "json", "rows": "1"}, 3,
        ("女：你去哪儿？\n男：去学校。 男的去哪儿？", "家", "学校", "3"), 1),
    "c3 as choices": Published(
        "c3-d-train.json", _C3,
        {"name": "cpm_ant_nlu", "input": "{0:\n}\n问题：{question}\n答案：", "options": "choice",
         "target": "answer", "target_as": "text"}, {"format": "json", "rows": "1"}, 3,
        ("女：你去哪儿？\n男：去学校。\n问题：男的去哪儿？\n答案：", "家", "学校", "3"), 1),
    "kdconv": Published(
        "train.json", _KDCONV,
        {"name": "cpm_ant_nlg", "input": "{before.message:\n}", "target": "message"},
        {"format": "json", "rows": "messages", "history": 6}, 3,
        ("知道那首歌吗？", "知道。"), "知道。"),
    "race": Published(
        "1.txt", _RACE,
        {"name": "multiple_choice", "context": "article", "question": "questions",
         "label": "answers", "label_as": ["A", "B", "C", "D"]},
        {"format": "json", "rows": "questions+options+answers"}, 2,
        ("Tom came to the green door. The door is _ .", "red", "green", "blue", "grey"), 1),
    "story cloze": Published(
        "cloze.csv", _STORY_CLOZE,
        {"name": "multiple_choice",
         "context": "{InputSentence1} {InputSentence2} {InputSentence3} {InputSentence4}",
         "options": ["RandomFifthSentenceQuiz1", "RandomFifthSentenceQuiz2"],
         "label": "AnswerRightEnding", "label_as": [1, 2]}, {}, 1,
        ("Kim was cold. She had no coat, none. She saw a shop. It was open.", "She slept.",
         "She bought a coat."), 1),
    "swag": Published(
        "train.csv", _SWAG,
        {"name": "multiple_choice", "context": "sent1", "question": "sent2",
         "options": [f"ending{i}" for i in range(4)]}, {}, 1,
        ("A man sits. He", "stands up.", "flies off.", "melts.", "sings fish."), 0),
    "arc": Published(
        "ARC-Easy-Train.jsonl", _ARC,
        {"name": "multiple_choice", "context": "question.stem", "label": "answerKey",
         "options": "question.choices.text", "label_as": ["A", "B", "C", "D", "E"]}, {}, 1,
        ("What melts?", "ice", "rock"), 0),
    "squad": Published(
        "train-v1.1.json", _SQUAD, {"name": "question_answering"}, {"format": "squad"}, 2,
        ("What is green?", "The door is green."), ("The door",)),
    "squad by a path": Published(
        "train-v1.1.json", _SQUAD, {"name": "question_answering"},
        {"format": "json", "rows": "data.paragraphs.qas"}, 2,
        ("What is green?", "The door is green."), ("The door",)),
    "squad as text": Published(
        "train-v1.1.json", _SQUAD,
        {"name": "seq2seq", "source": "question: {question} context: {context}",
         "target": "answers.0.text"}, {"format": "squad"}, 2,
        ("question: What is green? context: The door is green.", "The door"), "The door"),
    "csl title": Published(
        "train.tsv", _CSL_TITLE, {"name": "cpm_ant_nlg", "input": "2", "target": "3"}, {}, 2,
        ("研究了水声通信。", "水声通信研究"), "水声通信研究"),
    "mnli as text": Published(
        "train.tsv", _MNLI,
        {"name": "generation", "source": "{sentence1} Does it mean: {sentence2}?",
         "target": "gold_label", "choices": {"entailment": "yes", "contradiction": "no"}}, {}, 2,
        ("She ran home. Does it mean: She moved.?", "yes"), "yes"),
}  # fmt: skip


def write(folder: Path, name: str) -> Path:
    """Write the file of a benchmark; return its path."""
    path = folder / PUBLISHED[name].file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PUBLISHED[name].content, encoding="utf-8")
    return path
