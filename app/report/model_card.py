"""The model card: the CHAI Applied Model Card, its elements filled from facts or visibly to be completed.

The schema is published as XML (Coalition for Health AI, mc-schema v0.2, `schema.xsd`). The card is kept as nested
mappings with the schema's element names in the schema's order; JSON and XML are two spellings of the same.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring

import polars as pl

from app.report.answers import TO_BE_COMPLETED, refuse_unknown
from app.report.format_numbers import NOTHING, count, decimals, with_interval, years
from app.report.measures import MEASURES, Numbers, Row, key_of
from app.report.model_facts import ModelFacts
from app.report.read_evaluation import Evaluation
from app.report.subgroup_table import SubgroupTable
from data_schemas.results import (
    AUC,
    CALIBRATION_SLOPE,
    MACRO_MEAN,
    MODEL,
    OBSERVED_EXPECTED,
    POOLED,
    Metrics,
)
from pipelines.small_counts import show_count

SCHEMA = "https://mc.chai.org/v0.2/schema.xsd"
ROOT = "AppliedModelCard"
_CONFIDENCE_PERCENT = 95
_MOST_LISTED = 60
_OUTCOMES_WITH_RESULTS = 10
_BIBLIOGRAPHY = """@article{blanche2013, author={Blanche, P. and Dartigues, J.-F. and Jacqmin-Gadda, H.}, \
title={Estimating and comparing time-dependent areas under receiver operating characteristic curves for censored event \
times with competing risks}, journal={Statistics in Medicine}, volume={32}, pages={5381--5397}, year={2013}}
@article{vangeloven2022, author={van Geloven, N. and Giardiello, D. and Bonneville, E. F. and others}, \
title={Validation of prediction models in the presence of competing risks: a guide through modern methods}, \
journal={BMJ}, volume={377}, pages={e069249}, year={2022}}
@article{collins2024, author={Collins, G. S. and Moons, K. G. M. and Dhiman, P. and others}, \
title={TRIPOD+AI statement: updated guidance for reporting clinical prediction models that use regression or machine \
learning methods}, journal={BMJ}, volume={385}, pages={e078378}, year={2024}}"""


def build_model_card(
    evaluation: Evaluation,
    facts: ModelFacts,
    limits: Sequence[str],
    subgroups: Sequence[SubgroupTable],
    answers: Mapping[str, str],
) -> dict[str, Any]:
    """Return the card; `answers` by dotted element name replace what is written here.

    Raises:
        UsageError: an answer to an element that the schema does not have or that is no text.
    """
    card: dict[str, Any] = {
        "BasicInfo": {
            "ModelName": facts.name,
            "ModelDeveloper": TO_BE_COMPLETED,
            "DeveloperContact": TO_BE_COMPLETED,
        },
        "ReleaseInfo": _release(facts),
        "ModelSummary": _summary(evaluation, facts),
        "UsesAndDirections": _uses(facts),
        "Warnings": {
            "KnownRisksAndLimitations": _as_list(limits),
            "KnownBiasesOrEthicalConsiderations": TO_BE_COMPLETED,
            "ClinicalRiskLevel": TO_BE_COMPLETED,
        },
        "TrustIngredients": {
            "AISystemFacts": _system_facts(evaluation, facts),
            "TransparencyInformation": {
                "FundingSource": TO_BE_COMPLETED,
                "StakeholdersConsulted": TO_BE_COMPLETED,
            },
        },
        "KeyMetrics": _key_metrics(evaluation, subgroups),
        "Resources": {
            "EvaluationReferences": "Blanche et al. 2013 (AUC with competing risks), van Geloven et al. 2022 "
            "(calibration, validation with competing risks); see Bibliography.",
            "PeerReviewedPublications": TO_BE_COMPLETED,
            "PatientConsentOrDisclosure": TO_BE_COMPLETED,
        },
        "Bibliography": _BIBLIOGRAPHY,
    }
    refuse_unknown(answers, [name for name, _ in card_texts(card)], "model_card")
    for name, text in answers.items():
        _replace(card, name.split("."), text)
    return card


def card_texts(card: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield every element that holds a text, by its dotted name."""
    for name, content in card.items():
        if isinstance(content, str):
            yield f"{prefix}{name}", content
        elif isinstance(content, Mapping):
            yield from card_texts(content, f"{prefix}{name}.")


def card_sections(card: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the card for a page: each innermost section with its elements, results and keywords as lines of text."""
    sections: list[tuple[str, list[tuple[str, str]]]] = []
    for name, content in card.items():
        if isinstance(content, str):
            sections.append((_in_words(name), [("", content)]))
            continue
        texts = [(_in_words(element), _lines_of(value)) for element, value in content.items() if not _is_section(value)]
        if texts:
            sections.append((_in_words(name), texts))
        sections += card_sections({element: value for element, value in content.items() if _is_section(value)})
    return sections


def _is_section(value: Any) -> bool:
    return isinstance(value, Mapping) and not any(isinstance(entry, list) for entry in value.values())


def _lines_of(value: Any) -> str:
    """Write what an element holds: a text, keywords, or results with their intervals."""
    if isinstance(value, str):
        return value
    (entries,) = value.values()
    return "\n".join(entry if isinstance(entry, str) else _result_text(entry) for entry in entries)


def _result_text(result: Mapping[str, str]) -> str:
    value = json.loads(result["ValueJson"])
    number = with_interval(value.get("estimate", value.get("value")), value.get("lower"), value.get("upper"))
    return result["Label"] if number == NOTHING else f"{result['Label']}: {number}"


def _in_words(name: str) -> str:
    """Write `AISystemFacts` as `AI System Facts`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)


def card_as_json(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return the card under its root element, with the schema it follows."""
    return {"schema": SCHEMA, ROOT: card}


def card_as_xml(card: Mapping[str, Any]) -> str:
    """Return the card as an XML document of the schema."""
    root = Element(ROOT, xmlns=SCHEMA)
    _append(root, card)
    indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _append(parent: Element, content: Mapping[str, Any]) -> None:
    """Add elements in order; a list is the same element several times."""
    for name, value in content.items():
        for entry in value if isinstance(value, list) else [value]:
            child = SubElement(parent, name)
            if isinstance(entry, Mapping):
                _append(child, entry)
            else:
                child.text = str(entry)


def _replace(card: dict[str, Any], path: Sequence[str], text: str) -> None:
    *sections, last = path
    for section in sections:
        card = card[section]
    card[last] = text


def _release(facts: ModelFacts) -> dict[str, str]:
    commit = facts.tags.get("deephealth.git_commit", "")
    return {
        "ReleaseStage": "Research. Not released for use in care.",
        "ReleaseDate": f"Trained on {facts.trained_on}",
        "ReleaseVersion": f"run {facts.run_id}; {facts.software}{f', commit {commit}' if commit else ''}",
        "GlobalAvailability": TO_BE_COMPLETED,
        "RegulatoryApproval": TO_BE_COMPLETED,
    }


def _summary(evaluation: Evaluation, facts: ModelFacts) -> dict[str, Any]:
    horizons = ", ".join(years(days) for days in evaluation.horizons_days)
    return {
        "Summary": "From a person's sex, age and dated history of diseases and measurements the model gives the risk "
        f"of each of {len(facts.outcomes)} outcomes over any horizon (judged at {horizons}), with death as a "
        "competing event.",
        "Keywords": {"Keyword": ["risk prediction", "survival analysis", "competing risks", "disease history"]},
    }


def _uses(facts: ModelFacts) -> dict[str, str]:
    spread = "" if facts.cohort is None else _ages(facts)
    return {
        "IntendedUseAndWorkflow": TO_BE_COMPLETED,
        "PrimaryIntendedUsers": TO_BE_COMPLETED,
        "HowToUse": "`deephealth score` writes each person's risks beside those of people of the same age and sex. A "
        "risk is a cumulative incidence: of 100 people with a risk of 0.10, about 10 are expected to get the outcome "
        "by the horizon.",
        "TargetedPatientPopulation": f"{TO_BE_COMPLETED}.{spread}",
        "CautionedOutOfScopeSettings": "Populations, ages and ways of coding other than those of training, until "
        "evaluated there. Choosing treatment by predicted benefit: risks are associations and say nothing of effects.",
    }


def _ages(facts: ModelFacts) -> str:
    assert facts.cohort is not None
    low, *_, high = facts.cohort.entry_age_years.quantiles
    if low is None or high is None:
        return ""
    return f" Nine of ten people of the cohort entered at ages from {low:g} to {high:g} years."


def _system_facts(evaluation: Evaluation, facts: ModelFacts) -> dict[str, str]:
    n_diseases, n_measurements = facts.n_inputs
    outcomes = facts.outcomes
    listed = ", ".join(outcomes[:_MOST_LISTED])
    more = f" and {len(outcomes) - _MOST_LISTED} more" if len(outcomes) > _MOST_LISTED else ""
    parameters = facts.checkpoint.get("model_parameter_count")
    size = f", {parameters:,} parameters" if isinstance(parameters, int) else ""
    return {
        "OutcomesAndOutputs": f"Risk (0 to 1) of the first occurrence of: {listed}{more}.",
        "ModelType": f"Neural network for time-to-event data with competing death: {facts.name}{size}.",
        "InputDataSource": _source(facts),
        "OutputAndInputDataTypes": f"Input: sex, age, dated codes of {n_diseases} diseases and {n_measurements} "
        "measurements or categories. Output: one probability an outcome and horizon.",
        "DevelopmentDataCharacterization": _development_data(facts),
        "BiasMitigationApproaches": f"{TO_BE_COMPLETED}. The training has no term for fairness; performance by "
        "subgroup is under KeyMetrics.FairnessEquity.",
        "OngoingMaintenance": TO_BE_COMPLETED,
        "Security": "Weights and configuration are safetensors, parquet and JSON, verified by sha256 when loaded; "
        "nothing is unpickled. The model holds no person's record; counts under 10 were withheld from its tables.",
        "Transparency": "This report shows every number beside references on the same people, with 95 % intervals.",
    }


def _source(facts: ModelFacts) -> str:
    dataset = facts.tags.get("dataset", "")
    sha = facts.tags.get("dataset_sha256", "")
    kind = f"Cohort imported as {facts.cohort.kind}. " if facts.cohort is not None else ""
    named = f"Dataset {dataset or 'unnamed'}, sha256 {sha[:16] or 'unknown'}."
    return f"{kind}{named} Origin of the records: {TO_BE_COMPLETED}."


def _development_data(facts: ModelFacts) -> str:
    splits = ", ".join(f"{show_count(n)} {split.replace('_', ' ')}" for split, n in facts.people_by_split.items())
    parts = [f"People: {splits}."] if splits else []
    if facts.cohort is not None:
        sexes = ", ".join(f"{sex} {show_count(n)}" for sex, n in facts.cohort.sexes.items())
        parts.append(f"Sex: {sexes}. Deaths: {show_count(facts.cohort.deaths)}.")
        median = facts.cohort.follow_up.median_years
        if median is not None:
            parts.append(f"Median follow-up {median:.1f} years (reverse Kaplan–Meier).")
    parts.append(f"Calendar dates, places and ethnicity: {TO_BE_COMPLETED}.")
    return " ".join(parts)


def _key_metrics(evaluation: Evaluation, subgroups: Sequence[SubgroupTable]) -> dict[str, Any]:
    rows = evaluation.first_rows()
    numbers = Numbers(rows)
    horizon = years(evaluation.horizon_days)
    people = count(_largest(rows))
    shared = {
        "TestType": "Evaluation on held-out people, all predictors on the same people.",
        "TestingDataDescription": f"{people} people at risk at landmark {evaluation.landmark}, followed for {horizon}.",
        "ValidationProcessAndJustification": "Cumulative incidence with competing death; people lost to follow-up are "
        "accounted for by inverse-probability-of-censoring weights; 95 % intervals.",
    }
    useful = [
        _result(f"AUC, {_name(outcome)}, {horizon}", numbers.find(key_of(evaluation, MODEL, outcome, AUC)))
        for outcome in (MACRO_MEAN, *evaluation.outcomes_by_cases(_OUTCOMES_WITH_RESULTS))
    ]
    fair = [
        _result(f"AUC, {table.outcome}, {row.subgroup}", row.auc)
        for table in subgroups
        for row in table.rows
        if row.kind and row.auc is not None
    ]
    safe = [
        _result(
            f"{MEASURES[metric].label}, {_name(outcome)}, {horizon}",
            numbers.find(key_of(evaluation, MODEL, outcome, metric)),
        )
        for outcome in (POOLED, *evaluation.outcomes_by_cases(_OUTCOMES_WITH_RESULTS))
        for metric in (OBSERVED_EXPECTED, CALIBRATION_SLOPE)
    ]
    auc, ratio = (
        numbers.text(key_of(evaluation, MODEL, *what)) for what in ((MACRO_MEAN, AUC), (POOLED, OBSERVED_EXPECTED))
    )
    return {
        "UsefulnessUsabilityEfficacy": {
            "MetricGoal": "Order people by their risk better than age and sex alone do.",
            "Results": {"MetricResult": _some(useful)},
            "Interpretation": f"Mean AUC over outcomes {auc}. {MEASURES[AUC].reads.capitalize()}.",
            **shared,
        },
        "FairnessEquity": {
            "MetricGoal": "The same quality in each subgroup.",
            "Results": {"MetricResult": _some(fair)},
            "Interpretation": TO_BE_COMPLETED,
            **shared,
        },
        "SafetyReliability": {
            "MetricGoal": "Risks that are as high as what happens.",
            "Results": {"MetricResult": _some(safe)},
            "Interpretation": f"Observed over expected cases, all outcomes together: {ratio}. "
            f"{MEASURES[OBSERVED_EXPECTED].reads.capitalize()}.",
            **shared,
        },
    }


def _name(outcome: str) -> str:
    return {MACRO_MEAN: "mean over outcomes", POOLED: "all outcomes together"}.get(outcome, outcome)


def _largest(rows: pl.DataFrame) -> int | None:
    largest = rows[Metrics.n.name].max()
    return largest if isinstance(largest, int) else None


def _result(label: str, row: Row | None) -> dict[str, str] | None:
    """Return one result as the schema's examples write it: kind `estimate_ci`, or `single` without limits."""
    if row is None:
        return None
    estimate, lower, upper = (row[name] for name in (Metrics.estimate.name, Metrics.lower.name, Metrics.upper.name))
    if lower is None or upper is None:
        value: dict[str, Any] = {"kind": "single", "value": _rounded(estimate)}
    else:
        value = {
            "kind": "estimate_ci", "estimate": _rounded(estimate), "lower": _rounded(lower), "upper": _rounded(upper),
            "level": _CONFIDENCE_PERCENT,
        }  # fmt: skip
    return {"Label": label, "ValueJson": json.dumps(value, separators=(",", ":"))}


def _rounded(value: float) -> float:
    return float(decimals(value, 3).replace("\N{MINUS SIGN}", "-"))


def _some(results: Sequence[dict[str, str] | None]) -> list[dict[str, str]]:
    """Return the results that are there; the schema wants one at least."""
    found = [result for result in results if result is not None]
    return found or [{"Label": TO_BE_COMPLETED, "ValueJson": '{"kind":"single","value":null}'}]


def _as_list(sentences: Sequence[str]) -> str:
    """Write a Markdown list: text elements of the schema are Markdown."""
    return "\n".join(f"- {sentence}" for sentence in sentences)
