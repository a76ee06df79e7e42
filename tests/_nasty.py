# ruff: noqa: E501
"""Two hundred strings that tokenizers stumble over, the same at each call."""

import random

_WHOLE = [
    "", " ", "  ", "\n", "\t", "\r\n", "a", " a", "a ", "  a  b  ", "a\nb", "a\n\nb", "a\tb", "\na\n",
    "Hello, world!", "don't can't I'm we've", "U.S.A. 3.14 1,000,000 12,", "100% of £5 & €6 (or $7)",
    "``quoted'' \"text\" 'single'", "e-mail: a_b@c.de https://x.org/?q=1&r=2#z", "C:\\Users\\x", "x = y[0] * 2  # why",
    "    indented\n\treturn x", "ALL CAPS and MiXeD", "naïve café résumé Übermaß", "nai\u0308ve cafe\u0301",
    "o\u0302\u0323 a\u0323\u0302 e\u0301\u0323", "\u0301", "\u0301\u0301a", "ﬁnal ﬂow ｆｕｌｌ ＷＩＤＴＨ １２３", "①②③ ½ ¾ x² H₂O ™ ㎏",
    "中文 字符", "我们在北京学习。", "床前明月光,疑是地上霜", "日本語のテキスト", "カタカナ ｶﾀｶﾅ がぎぐ か\u3099", "한국어 텍스트", "\u1112\u1161\u11ab",
    "العربية نص", "עִבְרִית", "हिन्दी ज़", "ไทยไม่มีช่องว่าง", "Ελληνικά Русский", "i̇ İ ı I", "ß ẞ ss", "Straße STRASSE",
    "😀", "😀😀 a😀b", "👨‍👩‍👧‍👦", "👍🏽 ok", "🇩🇪🇫🇷", "❤️ ❤", "☃ ★ ♪", "\u200b", "a\u200bb", "a\u200db", "\ufeffa", "a\u00a0b", "a\u3000b", "a\u2009b\u202fc",
    "\u2028\u2029", "a\u2028b", "a\x00b", "\x00", "\x01\x02\x7f", "a\x1bb", "\u0085a", "a\u00adb", "\u202eabc\u202c", "\ufffd", "\ufffe", "\U0010ffff", "𝒜𝓑𝕮 𝟘", "𠀀𠮷",
    "<s>", "</s>", "<unk>", "<pad>", "<mask>", "a <s> b </s>", "x</s>", "[CLS] a [SEP]", "[MASK]", "[UNK][PAD]", "<sep><cls>",
    "<|endoftext|>", "<|im_start|>user", "<extra_id_0> and <extra_id_99>", "<0x41>", "<0xE4><0xBD><0xA0>", "<s>NOTUSED", "<eop> <eod>",
    "▁", "▁a", "a▁b", "▁▁a", "a ▁ b", "##ing ##", "Ġthe Ċ", "a</w>", "@@ a@@ b", "_a_b__c", "--- – — …", "?!?!!", "(((a)))",
    "a" * 150, "ab" * 60, "1234567890" * 5, "!" * 40, " " * 20 + "a", "词" * 40, "a  b   c    d", "\\n \\t", "\"\"\"", "'''", "''", "``",
]  # fmt: skip
_PARTS = [
    " ", "  ", "\n", "the ", "a", "cat", "ing", "The", "我", "中", "😀", "\u0301", "e\u0301", "é", "ß", "1", "23,", ".",
    ",", "-", "(", "<s>", "</s>", "[MASK]", "▁", "\x00", "\u200b", "\u3000", "ﬁ", "Ａ", "ｶﾞ", "\u00a0", "‘", "”", "x", "Q",
]  # fmt: skip


def strings() -> list[str]:
    """Return the strings: those that are written above, and others joined of parts."""
    rng, found = random.Random(0), dict.fromkeys(_WHOLE)
    while len(found) < 200:
        found["".join(rng.choices(_PARTS, k=rng.randint(2, 9)))] = None
    return [*found]
