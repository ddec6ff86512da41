"""Everything MLflow: the store, runs, the registered model and its registry. No other file imports mlflow.

Locally the store is one SQLite file and a folder of artefacts under `DEEPHEALTH_HOME`; a team points
`MLFLOW_TRACKING_URI` at a server. A run is a training; a logged model is its checkpoint with the code to load it; a
version is a logged model under a name; the alias `champion` is what scoring asks for.

MLflow reads its switches from the environment when it is imported. Setting them here is the one place outside `main`
that touches the environment; what the user has set stands.
"""

import json
import os

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("MLFLOW_DISABLE_SCHEMA_DETAILS", "true")  # its text for a bad input quotes the data frame
os.environ.setdefault("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "4")  # a server that is gone is noticed in half a minute

import re
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import mlflow
import pandas as pd
from filelock import FileLock
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModel, Metric, Param, RunTag
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature
from mlflow.pyfunc.model import PythonModel, PythonModelContext
from mlflow.types.schema import AnyType, Array, ColSpec, DataType, ParamSchema, ParamSpec, Schema

from app.checkpoint_files import (
    CHECKPOINT_HASH,
    DATA_HASH,
    FILE_HASHES,
    combine_hashes,
    describe_checkpoint,
    verify_checkpoint,
)
from app.code_version import PACKAGE, code_tags, pinned_requirements
from app.person_rows import read_person_rows, to_risk_columns, to_scoring_tables
from app.settings import Settings
from data_schemas.errors import DeepHealthError, ModelRefusedError, UsageError
from data_schemas.person_rows import PersonRows

if TYPE_CHECKING:
    from app.predict_risks import ScoringModel

CHAMPION = "champion"
MAX_HEADLINE_METRICS = 100
CHECKPOINT = "checkpoint"
RISK_MODEL = "risk_model"
DEFAULT_HORIZONS_YEARS = (1.0, 5.0, 10.0)

_MODEL_CODE = Path(__file__).with_name("model_code.py")
_PARAMS_PER_CALL, _METRICS_PER_CALL = 100, 1000  # MLflow's limits of one log_batch
_LONGEST_PARAM = 6000
_ARTIFACTS_FOLDER = "mlartifacts"
_LONGEST_DIGEST = 36
_MODEL_URI = re.compile(r"models:/(m-\w+)")
_NAME_CHARACTERS = re.compile(r"[^\w\-. /]", re.ASCII)


# ---- the store


@dataclass(frozen=True)
class Store:
    """An MLflow store that is there and initialised."""

    uri: str
    home: Path
    client: MlflowClient

    def select(self) -> None:
        """Make this the store of those parts of MLflow that know no other way than a global."""
        mlflow.set_tracking_uri(self.uri)
        mlflow.set_registry_uri(self.uri)


def open_store(settings: Settings) -> Store:
    """Open the store, making the local one at first use; several processes may do so at once.

    Raises:
        DeepHealthError: the store does not answer, or was made by another version of MLflow.
    """
    uri = settings.tracking_uri or f"sqlite:///{settings.home / 'mlflow.db'}"
    settings.home.mkdir(parents=True, exist_ok=True)
    try:
        if uri.startswith("sqlite:"):
            # Two processes that both find an empty database both migrate it, and both fail.
            with FileLock(settings.home / "mlflow.lock"):
                client = _connect(uri)
        else:
            client = _connect(uri)
    except MlflowException as error:
        text = f"the MLflow store {uri} cannot be used: {error.message}"
        raise DeepHealthError(_without_secrets(text)) from None
    store = Store(uri, settings.home, client)
    store.select()
    return store


def _connect(uri: str) -> MlflowClient:
    """Return a client whose store has answered once; the first makes the tables of a new database."""
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    client.search_experiments(max_results=1)
    return client


def _without_secrets(text: str) -> str:
    """Leave user and password out of each address in a text that is shown."""
    return re.sub(r"//[^/@\s]*@", "//", text)


def _experiment_id(store: Store, name: str) -> str:
    """Find or make an experiment; a local one keeps its artefacts under the home folder, wherever we were started."""
    artifacts = (store.home / _ARTIFACTS_FOLDER / name).as_uri() if store.uri.startswith("sqlite:") else None
    experiment = store.client.get_experiment_by_name(name)
    if experiment is None:
        try:
            return str(store.client.create_experiment(name, artifact_location=artifacts))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another process was faster
                raise UsageError(f"experiment '{name}': {error.message}") from None
        experiment = store.client.get_experiment_by_name(name)
    if experiment is None or experiment.lifecycle_stage != "active":
        raise UsageError(f"the experiment '{name}' was deleted; restore it with `mlflow experiments restore`")
    return str(experiment.experiment_id)


# ---- runs


class Run:
    """A run that is going on: what it logs is stored at once."""

    def __init__(self, store: Store, run_id: str) -> None:
        """Take up a run; the names of metrics it already has count."""
        self.store, self.run_id = store, run_id
        self._metrics = set(store.client.get_run(run_id).data.metrics)

    def log_metrics(self, metrics: Mapping[str, float], step: int = 0) -> None:
        """Log headline numbers of one step in one call; a table goes to `log_table`.

        Raises:
            ValueError: the run would have more than 100 metrics; MLflow copies each to the logged model, one by one.
        """
        named = {_metric_name(name): float(value) for name, value in metrics.items()}
        if len(named) < len(metrics):
            raise ValueError("two metrics have the same name once it is reduced to letters, digits and _-. /")
        together = self._metrics | set(named)
        if len(together) > MAX_HEADLINE_METRICS:
            raise ValueError(
                f"a run keeps at most {MAX_HEADLINE_METRICS} headline metrics, this would make {len(together)}; "
                "write the full table with log_table"
            )
        self._metrics = together
        now = int(time.time() * 1000)
        self.store.client.log_batch(
            self.run_id, metrics=[Metric(name, value, now, step) for name, value in named.items()]
        )

    def log_history(self, name: str, values_by_step: Mapping[int, float]) -> None:
        """Log a whole curve of one metric in few calls."""
        if not values_by_step:
            return
        first, *_ = values_by_step.items()
        self.log_metrics({name: first[1]}, step=first[0])
        now, key = int(time.time() * 1000), _metric_name(name)
        rest = [Metric(key, float(value), now, step) for step, value in list(values_by_step.items())[1:]]
        for start in range(0, len(rest), _METRICS_PER_CALL):
            self.store.client.log_batch(self.run_id, metrics=rest[start : start + _METRICS_PER_CALL])

    def log_files(self, path: Path, folder: str | None = None) -> None:
        """Store a file, or everything in a folder, under a folder of the run."""
        if path.is_dir():
            self.store.client.log_artifacts(self.run_id, str(path), folder)
        else:
            self.store.client.log_artifact(self.run_id, str(path), folder)

    def log_table(self, parquet: Path) -> None:
        """Store a full table; one file instead of thousands of metrics."""
        self.log_files(parquet, "tables")

    def log_dataset(self, name: str, digest: str, source: Path) -> None:
        """Say which dataset was used, by the hash of its content; not one row of it is read or stored."""
        place = json.dumps({"uri": source.absolute().as_uri()})
        dataset = Dataset(name, digest[:_LONGEST_DIGEST], source_type="local", source=place)
        tags = [InputTag("mlflow.data.context", "training"), InputTag(DATA_HASH, digest)]
        self.store.client.log_inputs(self.run_id, [DatasetInput(dataset, tags)])

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags in one call."""
        self.store.client.log_batch(self.run_id, tags=[RunTag(key, value) for key, value in tags.items()])


@contextmanager
def start_run(
    store: Store,
    experiment: str,
    run_name: str,
    params: Mapping[str, Any],
    tags: Mapping[str, str],
    run_id: str | None = None,
) -> Iterator[Run]:
    """Open a run, or take up `run_id` again; it ends FINISHED, FAILED, or KILLED when a person interrupts.

    Nested parameters get dotted names. Tags say which code ran, besides those given.

    Raises:
        ModelRefusedError: there is no run `run_id`.
        UsageError: a resumed run was started with other parameters.
    """
    store.select()
    if run_id is not None:
        _find_run(store, run_id)
    experiment_id = _experiment_id(store, experiment)
    active = mlflow.start_run(run_id=run_id, experiment_id=None if run_id else experiment_id, run_name=run_name)
    status = "FAILED"
    try:
        run = Run(store, active.info.run_id)
        run.set_tags({**code_tags(), **tags})
        _log_params(run, params)
        yield run
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        mlflow.end_run(status)


def _log_params(run: Run, params: Mapping[str, Any]) -> None:
    """Log what is new; a parameter of a resumed run that differs is refused, since MLflow cannot change it."""
    named = dict(_flatten(params))
    before = run.store.client.get_run(run.run_id).data.params
    changed = [name for name, value in named.items() if before.get(name, value) != value]
    if changed:
        name = changed[0]
        raise UsageError(
            f"run {run.run_id} was started with {name}={before[name]}, now it is {named[name]}"
            f"{f' (and {len(changed) - 1} more differ)' if len(changed) > 1 else ''}; start a new run instead"
        )
    new = [Param(name, value) for name, value in named.items() if name not in before]
    for start in range(0, len(new), _PARAMS_PER_CALL):
        run.store.client.log_batch(run.run_id, params=new[start : start + _PARAMS_PER_CALL])


def _flatten(params: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield dotted names and text; sections that are empty have nothing to say."""
    for key, value in params.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{name}.")
        else:
            text = json.dumps(value, default=str) if isinstance(value, list | tuple) else str(value)
            yield _NAME_CHARACTERS.sub("_", name), text[:_LONGEST_PARAM]


def _metric_name(name: str) -> str:
    """Reduce to the characters MLflow allows; a slash would make a folder of `ang/isc`."""
    return _NAME_CHARACTERS.sub("_", name).replace("/", "_")


def run_exists(store: Store, run_id: str) -> bool:
    """Say whether the store knows a run that was not deleted."""
    try:
        return bool(_find_run(store, run_id).info.lifecycle_stage == "active")
    except ModelRefusedError:
        return False


def _find_run(store: Store, run_id: str) -> Any:
    try:
        return store.client.get_run(run_id)
    except MlflowException as error:
        if error.error_code not in {"RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"}:
            raise DeepHealthError(f"run {run_id} cannot be read: {error.message}") from None
        raise ModelRefusedError(f"there is no run {run_id} in {_without_secrets(store.uri)}") from None


# ---- the model as it is stored


def log_risk_model(run: Run, checkpoint: Path) -> str:
    """Store a checkpoint folder with the code that loads it, and return its URI `models:/m-…`.

    Call it before metrics are logged: MLflow copies each metric of the run to the model.

    Raises:
        ModelRefusedError: the folder is no checkpoint.
    """
    description = describe_checkpoint(checkpoint)
    with warnings.catch_warnings():
        # MLflow wants an input example, which it would store. None is given: not even a made-up person looks like one.
        warnings.filterwarnings("ignore", message=".*input example was not provided", category=UserWarning)
        info = mlflow.pyfunc.log_model(
            name=RISK_MODEL,
            python_model=str(_MODEL_CODE),
            artifacts={CHECKPOINT: str(checkpoint)},
            signature=_signature(),
            pip_requirements=pinned_requirements(),  # left to itself, MLflow loads the model again to find them out
            metadata=description,
            # Kept in the database too: who changes the files and their list must also reach the database.
            tags={CHECKPOINT_HASH: description[CHECKPOINT_HASH]},
        )
    return str(info.model_uri)


def _signature() -> ModelSignature:
    """Return the columns of `PersonRows` and the parameters.

    MLflow's own check of a column quotes the whole data frame when it fails, refuses whole numbers where it wants a
    double, and cannot take ids of two kinds. So no column is required of it and numbers may be of any kind: the
    check that counts, `read_person_rows`, comes right behind.
    """
    anything = AnyType()  # type: ignore[no-untyped-call]
    columns: dict[str, AnyType | Array | DataType] = {
        PersonRows.subject_id.name: anything,
        PersonRows.sex.name: DataType.string,
        PersonRows.codes.name: Array(DataType.string),
        PersonRows.ages_days.name: Array(anything),
        PersonRows.values.name: Array(anything),
        PersonRows.landmark_age_days.name: anything,
    }
    params = [
        ParamSpec("horizons_years", DataType.double, list(DEFAULT_HORIZONS_YEARS), shape=(-1,)),
        ParamSpec("outcomes", DataType.string, [], shape=(-1,)),  # empty: all
    ]
    inputs = Schema([ColSpec(kind, name, required=False) for name, kind in columns.items()])
    return ModelSignature(inputs=inputs, params=ParamSchema(params))


class RegisteredRiskModel(PythonModel):  # type: ignore[misc,unused-ignore]
    """What `mlflow.pyfunc.load_model` gives: one row a person in (`PersonRows`), one row a person out."""

    def load_context(self, context: PythonModelContext) -> None:
        """Verify version and files, then load the network.

        Raises:
            ModelRefusedError: made by another major version, or a file is not what was stored.
        """
        from app.predict_risks import load_risk_model

        checkpoint = Path(context.artifacts[CHECKPOINT])
        verify_checkpoint(checkpoint, _stored_description(checkpoint.parents[1]))
        self._model: ScoringModel = load_risk_model(checkpoint)

    def predict(
        self, context: PythonModelContext, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """Return `subject_id` and one column an outcome and horizon, named `{outcome}|{horizon}y`.

        Rows in are rows out, in the same order; the risk of who is not at risk is null. Parameters: `horizons_years`
        (default 1, 5, 10) and `outcomes` (default all).

        Raises:
            InputContractError: names column, rule and row numbers of a bad input, never its values.
        """
        from app.predict_risks import predict_risks

        params = params or {}
        people = read_person_rows(model_input)
        if people.is_empty():
            return model_input[[PersonRows.subject_id.name]].copy()
        tables = to_scoring_tables(people)
        horizons = [float(years) for years in params.get("horizons_years", DEFAULT_HORIZONS_YEARS)]
        outcomes: Sequence[str] = [str(outcome) for outcome in params.get("outcomes", ())]
        risks = predict_risks(self._model, tables.subjects, tables.events, tables.landmarks, outcomes, horizons)
        return to_risk_columns(risks, model_input)


def declare_model() -> None:
    """Tell MLflow, which runs `model_code.py`, what the model is."""
    mlflow.models.set_model(RegisteredRiskModel())


def _stored_description(folder: Path) -> dict[str, Any]:
    """Return what `log_risk_model` wrote into the folder of a stored model (`MLmodel`, `artifacts/...`)."""
    try:
        metadata = Model.load(str(folder)).metadata
    except MlflowException:
        raise ModelRefusedError(f"{folder}: the file MLmodel is missing or cannot be read") from None
    if not metadata or FILE_HASHES not in metadata:
        raise ModelRefusedError(f"{folder}: not a model of {PACKAGE}; it has no list of files")
    return dict(metadata)


# ---- the registry


@dataclass(frozen=True)
class FetchedModel:
    """A stored model whose files are here and verified."""

    checkpoint: Path
    name: str | None
    version: int | None
    run_id: str | None


def register_version(store: Store, run_id: str, name: str, alias: str | None = None) -> int:
    """Make a version of `name` from a run's risk model; the same model again gives the same version.

    Raises:
        ModelRefusedError: no such run, or it has stored no risk model.
        UsageError: MLflow does not accept the name or the alias.
    """
    if alias == CHAMPION:
        raise UsageError(f"the alias {CHAMPION} moves by `deephealth promote`")
    store.select()
    model = _risk_model_of_run(store, run_id)
    try:
        _ensure_registered_name(store, name)
        number = _version_of_model(store, name, model)
        if alias:
            store.client.set_registered_model_alias(name, alias, str(number))
    except MlflowException as error:
        if error.error_code == "INVALID_PARAMETER_VALUE":
            raise UsageError(error.message) from None
        raise
    return number


def _ensure_registered_name(store: Store, name: str) -> None:
    try:
        store.client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _version_of_model(store: Store, name: str, model: LoggedModel) -> int:
    for version in _versions(store, name):
        if version.source == model.model_uri:  # the store keeps the source of a version, but not its model_id
            return int(version.version)
    made = store.client.create_model_version(
        name,
        source=model.model_uri,
        run_id=model.source_run_id,
        tags={CHECKPOINT_HASH: model.tags.get(CHECKPOINT_HASH, "")},
        model_id=model.model_id,
    )
    return int(made.version)


def promote(store: Store, name: str, version: int) -> int | None:
    """Move the alias `champion` to a version and return the version that had it.

    Raises:
        ModelRefusedError: says which names or versions there are.
    """
    _require_version(store, name, version)
    previous = _aliases(store, name).get(CHAMPION)
    store.client.set_registered_model_alias(name, CHAMPION, str(version))
    return previous


def fetch_model(store: Store, uri: str) -> FetchedModel:
    """Bring the files of a stored model here and verify them.

    Args:
        store: where to look.
        uri: `models:/NAME@ALIAS`, `models:/NAME/VERSION`, `runs:/RUN_ID`, or `models:/m-…` from `log_risk_model`.

    Raises:
        UsageError: the URI is of another form.
        ModelRefusedError: there is no such model (says what there is), or its files are missing or changed.
    """
    version: ModelVersion | None = None
    if match := re.fullmatch(r"models:/([^/@]+)@([^/@]+)", uri):
        version = _require_alias(store, match[1], match[2])
    elif match := re.fullmatch(r"models:/([^/@]+)/(\d+)", uri):
        version = _require_version(store, match[1], int(match[2]))
    elif match := re.fullmatch(r"runs:/([^/]+)/?", uri):
        return _fetch(store, _risk_model_of_run(store, match[1]), None)
    elif match := _MODEL_URI.fullmatch(uri):
        return _fetch(store, _logged_model(store, match[1]), None)
    if version is None:
        forms = f"models:/NAME@{CHAMPION}, models:/NAME/VERSION or runs:/RUN_ID"
        raise UsageError(f"'{uri}' names no model; expected {forms}")
    made_here = _MODEL_URI.fullmatch(version.source or "")
    if not made_here:
        raise ModelRefusedError(f"version {version.version} of {version.name} was not made by `deephealth register`")
    return _fetch(store, _logged_model(store, made_here[1]), version)


def _fetch(store: Store, model: LoggedModel, version: ModelVersion | None) -> FetchedModel:
    folder = _local_folder(store, model)
    description = _stored_description(folder)
    checkpoint = _checkpoint_folder(folder)
    verify_checkpoint(checkpoint, description)
    if model.tags.get(CHECKPOINT_HASH) != combine_hashes(description[FILE_HASHES]):
        raise ModelRefusedError(f"{folder / 'MLmodel'}: the list of files is not the one in the store's database")
    return FetchedModel(
        checkpoint=checkpoint,
        name=version.name if version else None,
        version=int(version.version) if version else None,
        run_id=model.source_run_id,
    )


def _checkpoint_folder(folder: Path) -> Path:
    """Return where MLflow put the artefact `checkpoint`, which keeps the name its folder had."""
    artifacts: dict[str, dict[str, str]] = Model.load(str(folder)).flavors["python_function"]["artifacts"]
    return folder / artifacts[CHECKPOINT]["path"]


def _local_folder(store: Store, model: LoggedModel) -> Path:
    """Return the folder of a stored model, downloaded whole or not at all when the store is elsewhere."""
    location = urlsplit(model.artifact_location)
    if location.scheme in {"", "file"}:
        folder = _where_it_is_now(Path(url2pathname(location.path)), store.home)
        if not folder.is_dir():
            raise ModelRefusedError(f"the files of the model are not at {folder}; was {store.home} moved or tidied?")
        return folder
    folder = store.home / "fetched_models" / model.model_id
    if not folder.is_dir():
        temporary = folder.with_name(f".{folder.name}.{os.getpid()}.part")
        temporary.mkdir(parents=True, exist_ok=True)
        try:
            mlflow.artifacts.download_artifacts(model.model_uri, dst_path=str(temporary), tracking_uri=store.uri)
            with FileLock(folder.with_suffix(".lock")):
                if not folder.is_dir():
                    temporary.replace(folder)
        except MlflowException as error:
            raise DeepHealthError(f"the files of {model.model_uri} cannot be downloaded: {error.message}") from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _where_it_is_now(folder: Path, home: Path) -> Path:
    """Find a folder of artefacts again under a home that was moved or is mounted elsewhere.

    The database keeps absolute places. What is found is verified like any other: by sha256, also in the database.
    """
    if not folder.is_dir():
        for number, part in enumerate(folder.parts):
            moved = home.joinpath(*folder.parts[number:])
            if part == _ARTIFACTS_FOLDER and moved.is_dir():
                return moved
    return folder


def _risk_model_of_run(store: Store, run_id: str) -> LoggedModel:
    """Return the latest risk model that a run has stored."""
    run = _find_run(store, run_id)
    found = store.client.search_logged_models([run.info.experiment_id], filter_string=f"source_run_id = '{run_id}'")
    models = [model for model in found if model.name == RISK_MODEL and str(model.status) == "READY"]
    if not models:
        raise ModelRefusedError(f"run {run_id} has stored no risk model; only a finished `deephealth train` does")
    return max(models, key=lambda model: int(model.creation_timestamp))


def _logged_model(store: Store, model_id: str) -> LoggedModel:
    try:
        return store.client.get_logged_model(model_id)
    except MlflowException:
        raise ModelRefusedError(f"there is no model {model_id} in {_without_secrets(store.uri)}") from None


def _versions(store: Store, name: str) -> list[ModelVersion]:
    quoted = name.replace("'", "''")
    return sorted(store.client.search_model_versions(f"name = '{quoted}'"), key=lambda version: int(version.version))


def _aliases(store: Store, name: str) -> dict[str, int]:
    """Return the aliases of a name.

    Raises:
        ModelRefusedError: there is no such name; says which there are.
    """
    try:
        registered = store.client.get_registered_model(name)
    except MlflowException:
        names = ", ".join(model.name for model in store.client.search_registered_models()) or "none yet"
        raise ModelRefusedError(f"no model is registered as '{name}'; registered: {names}") from None
    return {alias: int(version) for alias, version in registered.aliases.items()}


def _require_alias(store: Store, name: str, alias: str) -> ModelVersion:
    aliases = _aliases(store, name)
    if alias not in aliases:
        there_are = ", ".join(f"{known} (version {version})" for known, version in aliases.items()) or "none"
        raise ModelRefusedError(f"model '{name}' has no alias '{alias}'; its aliases: {there_are}")
    return store.client.get_model_version(name, str(aliases[alias]))


def _require_version(store: Store, name: str, version: int) -> ModelVersion:
    _aliases(store, name)
    versions = {int(known.version): known for known in _versions(store, name)}
    if version not in versions:
        there_are = ", ".join(map(str, versions)) or "none"
        raise ModelRefusedError(f"model '{name}' has no version {version}; its versions: {there_are}")
    return versions[version]
