"""`deephealth cohort synthesize`: a made-up population whose true hazards are known."""

from pathlib import Path

from app.config_files import Overrides, read_config
from app.terminal import Report, show_progress
from data_schemas.errors import UsageError


def synthesize(
    *,
    subjects: int,
    out: Path,
    seed: int = 0,
    config: Path | None = None,
    overrides: Overrides = (),
) -> Report:
    """Write a made-up cohort whose true risks are known.

    The people live under hazards of a few hundred ICD-10 codes by age, sex, body mass index, blood pressure, smoking,
    past diseases and a hidden frailty. The folder truth/ keeps these hazards: `pipelines/true_risks.py` computes from
    it the risk of anyone at any age, to compare a model with.

    Example: deephealth cohort synthesize --subjects 20000 --seed 1 --out cohorts/made_up --set n_codes=100

    Args:
        subjects: How many people.
        out: Folder of the cohort; written whole or not at all.
        seed: Seed of the people; the first people are the same however many there are.
        config: YAML file of settings of the world and of who is seen of it; without it the defaults hold.
        overrides: One setting on top of the file, as key=value; may be repeated.
    """
    from pipelines.synthesize.config import SynthesizeConfig
    from pipelines.synthesize.synthesize_cohort import synthesize_cohort

    if subjects < 1 or seed < 0:
        raise UsageError("--subjects must be at least 1 and --seed at least 0")
    settings = read_config(SynthesizeConfig, config, overrides)
    with show_progress("drawing people", total=subjects) as bar:
        report = synthesize_cohort(out, subjects, seed, settings, on_people=bar.advance)
    from data_schemas.import_report import summary_lines

    return Report(
        last_line=f"made-up cohort written to {out}, its true hazards to {out / 'truth'}",
        facts={
            "cohort": out,
            "truth": out / "truth",
            "subjects": report.subjects,
            "events": report.events,
            "codes": report.codes,
            "deaths": report.deaths,
            "seed": seed,
            "settings": settings.model_dump(mode="json"),
        },
        lines=summary_lines(report),
    )
