"""What a family says that it can do."""

from typing import ClassVar

import pytest

from nlpkit.models.config import ModelConfig


def test_capability_that_is_none_is_refused_with_the_words() -> None:
    with pytest.raises(TypeError, match=r"^pears: `CAN` lists the capabilities; causal, .*pairs"):

        class Misspelt(ModelConfig):
            CAN: ClassVar[tuple[str, ...]] = ("pears",)


def test_capability_that_is_a_member_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^pairs: `CAN` lists"):

        class Member(ModelConfig):
            pairs: ClassVar[bool] = True
