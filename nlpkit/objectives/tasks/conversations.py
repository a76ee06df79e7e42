"""Conversations: rows of three layouts as messages, and messages as text by a template in Jinja."""

import json
from collections.abc import Mapping
from typing import Any

from nlpkit.contracts.reader import Row, RowError
from nlpkit.data.lines import check_characters, kind_of

Messages = list[dict[str, str]]

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_ROLES = {"human": "user", "gpt": "assistant"}  # of ShareGPT


def parse(line: str) -> Messages:
    """Return the conversation in a line of JSON: a list, or an object with `messages`.

    Raises:
        RowError: it is none.
    """
    try:
        value = json.loads(line)
    except ValueError as error:
        raise RowError(f"not JSON: {error}") from error
    except RecursionError as error:
        raise RowError("JSON that is nested too deeply") from error
    if isinstance(value, dict) and "messages" in value:
        value = value["messages"]
    elif not isinstance(value, list):
        what = 'an object without "messages"' if isinstance(value, dict) else kind_of(value)
        raise RowError(f"{what}, not a conversation, which is a list of messages")
    found = read_list(value, "messages")
    for number, each in enumerate(found, 1):
        for name, text in each.items():
            check_characters(text, f"the {name} of message {number}")
    return found


def read_alpaca(row: Row) -> Messages:
    """Return the messages of instruction, input (which may be missing) and output; `RowError`."""
    asked = row.text("instruction")
    more = row.value("input") if row.values.get("input") else ""
    if not isinstance(more, str):
        raise RowError(f'"input" is {kind_of(more)}, not a string')
    question = message("user", f"{asked}\n{more}" if more else asked)
    return [question, message("assistant", row.text("output"))]


def read_list(value: object, column: str) -> Messages:
    """Return the messages in the list of a column, of either form; raise `RowError`."""
    if not isinstance(value, list) or not value:
        what = "an empty list" if value == [] else kind_of(value)
        raise RowError(f'"{column}" is {what}, not a list of messages')
    found = []
    for number, each in enumerate(value, 1):
        fields = each if isinstance(each, dict) else {}
        role = fields.get("role", fields.get("from"))
        content = fields.get("content", fields.get("value"))
        if not isinstance(role, str) or not isinstance(content, str):
            raise RowError(
                f'message {number} of "{column}" needs role and content (or from and value), texts'
            )
        found.append(message(_ROLES.get(role, role), content))
    return found


def message(role: str, content: str) -> dict[str, str]:
    """Return a message."""
    return {"role": role, "content": content}


def render(
    template: str, messages: Messages, prompt: bool, mark: bool, tokens: Mapping[str, str]
) -> tuple[str, list[tuple[int, int]]]:
    """Return the text, and with `mark` where {% generation %} stands, by transformers' sandbox.

    `prompt`: what begins the assistant's next turn stands behind it. Raises `RowError` if the
    template refuses the messages.
    """
    from jinja2 import TemplateError
    from transformers.utils.chat_template_utils import render_jinja_template

    values: dict[str, Any] = {"return_assistant_tokens_mask": mark, **tokens}
    try:
        made: Any = render_jinja_template(
            [messages], chat_template=template, add_generation_prompt=prompt, **values
        )
    # The last three are what a template computes, such as a number added to a text.
    except (TemplateError, TypeError, ValueError, ArithmeticError) as error:
        raise RowError(f"the chat template refuses it: {error}") from error
    texts, marks = made
    return texts[0], [(start, stop) for start, stop in marks[0]] if mark else []
