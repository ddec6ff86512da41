"""What people say of a model that no software can know: funding, ethics, intended use. One YAML file fills it in."""

import difflib
from collections.abc import Iterable, Mapping

from pydantic import BaseModel, ConfigDict, Field

from data_schemas.errors import UsageError

TO_BE_COMPLETED = "To be completed"


class ReportAnswers(BaseModel):
    """Settings of `deephealth report --answers`, read from YAML; unknown keys are refused.

    An answer takes the place of what the software wrote.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    title: str = Field("", description="title of the page")
    model_card: dict[str, str] = Field(
        default_factory=dict, description="element of the model card, such as BasicInfo.ModelDeveloper, and its text"
    )
    tripod: dict[str, str] = Field(default_factory=dict, description="item of TRIPOD+AI, such as 3a, and its text")


def refuse_unknown(answers: Mapping[str, str], known: Iterable[str], section: str) -> None:
    """Refuse answers to questions that nobody asks.

    Raises:
        UsageError: names the first of them, and what is spelled most like it.
    """
    questions = list(known)
    for name in answers:
        if name not in questions:
            close = difflib.get_close_matches(name, questions, n=1)
            hint = f"; did you mean '{close[0]}'?" if close else f"; there are: {', '.join(questions)}"
            raise UsageError(f"answers: {section} has no '{name}'{hint}")
