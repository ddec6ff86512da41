"""The model card follows the published schema, TRIPOD+AI is whole, and what only people know is marked."""

import json
from xml.etree import ElementTree

import pytest
from made_up_evaluation import write_made_up_evaluation
from made_up_model import made_up_facts

from app.report.answers import TO_BE_COMPLETED
from app.report.model_card import SCHEMA, build_model_card, card_as_json, card_as_xml, card_sections, card_texts
from app.report.read_evaluation import read_evaluation
from app.report.subgroup_table import tabulate_subgroups
from app.report.tripod_items import fill_tripod, tripod_as_json
from data_schemas.errors import UsageError

# Elements of mc-schema v0.2 in the order of its sequences; those in brackets may be left out.
ELEMENTS = {
    "": "BasicInfo ReleaseInfo ModelSummary UsesAndDirections Warnings TrustIngredients KeyMetrics Resources "
    "Bibliography",
    "BasicInfo": "ModelName ModelDeveloper DeveloperContact",
    "ReleaseInfo": "ReleaseStage ReleaseDate ReleaseVersion GlobalAvailability [EHRCompatibility] [RegulatoryApproval]",
    "ModelSummary": "Summary Keywords",
    "UsesAndDirections": "IntendedUseAndWorkflow PrimaryIntendedUsers HowToUse TargetedPatientPopulation "
    "CautionedOutOfScopeSettings",
    "Warnings": "KnownRisksAndLimitations KnownBiasesOrEthicalConsiderations ClinicalRiskLevel",
    "TrustIngredients": "AISystemFacts TransparencyInformation",
    "TrustIngredients.AISystemFacts": "OutcomesAndOutputs ModelType [FoundationModels] InputDataSource "
    "OutputAndInputDataTypes DevelopmentDataCharacterization BiasMitigationApproaches OngoingMaintenance [Security] "
    "[Transparency]",
    "TrustIngredients.TransparencyInformation": "FundingSource [ThirdPartyInformation] StakeholdersConsulted",
    "KeyMetrics": "UsefulnessUsabilityEfficacy FairnessEquity SafetyReliability",
    "KeyMetrics.FairnessEquity": "MetricGoal Results Interpretation TestType TestingDataDescription "
    "ValidationProcessAndJustification",
    "Resources": "[EvaluationReferences] [ClinicalTrial] PeerReviewedPublications [ReimbursementStatus] "
    "PatientConsentOrDisclosure",
}


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory):
    return read_evaluation(write_made_up_evaluation(tmp_path_factory.mktemp("evaluation") / "tables"))


def make_card(evaluation, answers=None):
    subgroups = tabulate_subgroups(evaluation, {})
    return build_model_card(evaluation, made_up_facts(), ["few were followed"], subgroups, answers or {})


def section_of(card, path):
    for name in path.split(".") if path else ():
        card = card[name]
    return card


@pytest.mark.parametrize("path", ELEMENTS)
def test_elements_are_those_of_the_schema_in_its_order(evaluation, path):
    expected = ELEMENTS[path].split()
    found = list(section_of(make_card(evaluation), path))
    names = [name.strip("[]") for name in expected]
    assert [name for name in names if name in found] == found
    assert {name for name in expected if not name.startswith("[")} <= set(found)


def test_json_and_xml_say_the_same(evaluation):
    card = make_card(evaluation)
    content = json.loads(json.dumps(card_as_json(card)))
    assert content["schema"] == SCHEMA
    root = ElementTree.fromstring(card_as_xml(card))  # noqa: S314 - made here
    space = f"{{{SCHEMA}}}"
    assert root.tag == f"{space}AppliedModelCard"
    texts = dict(card_texts(content["AppliedModelCard"]))
    assert len(texts) > 40
    for name, text in texts.items():
        found = root.find("/".join(f"{space}{part}" for part in name.split(".")))
        assert found is not None
        assert found.text == text


def test_results_are_written_as_the_schema_has_them_and_none_rests_on_few(evaluation):
    metrics = make_card(evaluation)["KeyMetrics"]
    useful = metrics["UsefulnessUsabilityEfficacy"]["Results"]["MetricResult"]
    assert useful[0] == {
        "Label": "AUC, mean over outcomes, 5 years",
        "ValueJson": '{"kind":"estimate_ci","estimate":0.781,"lower":0.763,"upper":0.799,"level":95}',
    }
    labels = [result["Label"] for result in metrics["FairnessEquity"]["Results"]["MetricResult"]]
    assert "AUC, stroke, sex: male" in labels
    assert "AUC, stroke, sex: unknown" not in labels


def test_a_page_shows_sections_in_words_with_results_and_keywords(evaluation):
    card = make_card(evaluation)
    sections = dict(card_sections(card))
    assert list(sections)[:3] == ["Basic Info", "Release Info", "Model Summary"]
    assert ("Keywords", "risk prediction\nsurvival analysis\ncompeting risks\ndisease history") in sections[
        "Model Summary"
    ]
    results = dict(sections["Usefulness Usability Efficacy"])["Results"].splitlines()
    assert results[0] == "AUC, mean over outcomes, 5 years: 0.78 (0.76–0.80)"
    shown = {text for texts in sections.values() for _, text in texts}
    assert {text for _, text in card_texts(card)} <= shown


def test_what_only_people_know_is_marked_until_they_say_it(evaluation):
    assert make_card(evaluation)["BasicInfo"]["ModelDeveloper"] == TO_BE_COMPLETED
    named = make_card(evaluation, {"BasicInfo.ModelDeveloper": "A hospital"})
    assert named["BasicInfo"]["ModelDeveloper"] == "A hospital"
    with pytest.raises(UsageError, match=r"no 'BasicInfo\.ModelDeveloped'; did you mean 'BasicInfo\.ModelDeveloper'\?"):
        make_card(evaluation, {"BasicInfo.ModelDeveloped": "x"})


def test_tripod_has_27_items_in_52_parts(evaluation):
    items = fill_tripod(evaluation, made_up_facts(), ["few were followed"], {})
    numbers = [item.number for item in items]
    assert len(numbers) == len(set(numbers)) == 52
    assert list(dict.fromkeys(int(number.rstrip("abcdefg")) for number in numbers)) == list(range(1, 28))
    states = {item.number: item.state for item in items}
    for number in ("2", "3a", "3b", "3c", "17", "18a", "18b", "18c", "18d", "19", "25", "27b", "27c"):
        assert states[number] == "to be completed"
    for number in ("8a", "12a", "12c", "21", "22", "23a"):
        assert states[number] == "given"
    assert states["26"] == "partly"
    assert all(bool(item.answer) == (item.state != "to be completed") for item in items)


def test_an_answer_completes_an_item_and_one_to_no_item_is_refused(evaluation):
    facts = made_up_facts()
    given = {item.number: item for item in fill_tripod(evaluation, facts, [], {"18a": "A foundation."})}
    assert (given["18a"].answer, given["18a"].state) == ("A foundation.", "given")
    assert tripod_as_json(list(given.values()))["items"][0]["number"] == "1"
    with pytest.raises(UsageError, match="tripod has no '28'"):
        fill_tripod(evaluation, facts, [], {"28": "x"})


def test_facts_that_are_not_at_hand_leave_items_open(evaluation):
    bare = {item.number: item for item in fill_tripod(evaluation, made_up_facts(manifest=None), [], {})}
    assert bare["5b"].state == bare["20b"].state == "to be completed"
    assert "seed" not in bare["12a"].answer
