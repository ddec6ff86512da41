"""Fixtures for all kinds of tests: a small made-up cohort, and the dataset that is prepared from it."""

import os
import sys
from pathlib import Path

import pytest

# Test files lie in no package; this lets them share `small_cohort` and `drawn_batches`.
sys.path.insert(0, str(Path(__file__).parent))

from small_cohort import write_small_cohort

from pipelines.prepare_config import PrepareConfig
from pipelines.prepare_dataset import prepare_dataset


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """With DEEPHEALTH_NO_SKIP set (continuous integration) a test that would be skipped fails and says why."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("DEEPHEALTH_NO_SKIP"):
        report.outcome = "failed"
        report.longrepr = f"skipped, but nothing may be skipped here: {report.longrepr[-1]}"
    return report


@pytest.fixture(scope="session")
def small_cohort(tmp_path_factory) -> Path:
    """300 people in two event files. Read only: it is shared by all tests of a session."""
    return write_small_cohort(tmp_path_factory.mktemp("small") / "cohort", n_event_files=2)


@pytest.fixture(scope="session")
def small_dataset(small_cohort) -> Path:
    """The small cohort prepared, with a group `any_heart` of angina and stroke. Read only."""
    out = small_cohort.parent / "dataset"
    prepare_dataset(small_cohort, out, PrepareConfig(groups={"any_heart": ("angina", "stroke")}))
    return out
