"""`medapps crop` and `medapps similar`, on an embedding whose numbers are known."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from medapps.cli.main import app
from medapps.crop.crop import load_crop
from medapps.crop.embedding import Embedding
from medapps.graph.graph import Graph
from medapps.model.rule import ScoreSpec
from medapps.report import Report
from medapps.store import Provenance
from tests.contracts import assert_maker, assert_sound
from tests.crop.conftest import make_crop

DIMS = (5, 10, 40)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A graph with validation triples and an embedding of it, as a training leaves them."""
    return make_workspace(tmp_path)


def make_workspace(tmp_path: Path, *, held_out: float = 0) -> Path:
    """With `held_out`, the training takes this share of the triples to validate with."""
    full = make_crop(n=200, dim=40)
    assert full.relations is not None and full.relation_ids is not None
    rng = np.random.default_rng(3)
    h, r = rng.integers(0, 200, 60), rng.integers(0, 4, 60)
    target = full.entities[h] + full.relations[r]
    t = ((target[:, None] - full.entities) ** 2).sum(2).argmin(1)  # all 40 numbers rank these first
    triples = np.stack([h, r, t], 1).astype(np.int32)
    graph = Graph(
        entities=full.entity_ids,
        relations=full.relation_ids,
        train=triples if held_out else triples[:1],
        valid=triples[:0] if held_out else triples,
        test=triples[:0],
        users=full.users,
        name="toy",
    ).save(tmp_path / "w" / "graphs" / "g")
    settings = {"seed": 0} | ({"patience": 5, "fraction": held_out} if held_out else {})
    Embedding(
        entities=full.entities,
        relations=full.relations,
        dims=DIMS,
        specs=tuple(ScoreSpec(scale=(40 / d) ** 0.25, margin=5.0) for d in DIMS),
        entity_ids=full.entity_ids,
        relation_ids=full.relation_ids,
        users=full.users,
        graph_digest=graph.digest,
        metrics={"train_seconds": 1.5},
        about={"data": "toy"},
    ).save(tmp_path / "w" / "embeddings" / "e", Provenance(settings, {"run": "a training"}))
    return tmp_path / "w"


def medapps(workspace: Path, *words: str, tracked: bool = False) -> tuple[int, dict[str, Any], str]:
    options = ["--workspace", str(workspace), "--json"] + ([] if tracked else ["--no-track"])
    result = CliRunner().invoke(app, [*words, *options])
    return result.exit_code, json.loads(result.stdout), result.stderr


def test_crop_says_what_it_wrote(workspace: Path) -> None:
    code, said, _ = medapps(workspace, "crop", "--dim", "10")
    assert code == 0
    assert (said["dim"], said["dtype"], said["format"], said["rows"]) == (
        10, "float32", "safetensors", 200
    )  # fmt: skip
    folder = Path(said["artifact"])
    crop = load_crop(folder)
    assert_sound(crop)
    assert said["tier"] == "phone" and crop.about["train_seconds"] == 1.5
    assert crop.manifest is not None and crop.manifest.parents["training_run"] == "a training"
    assert said["sha256"] == sha256((folder / said["file"]).read_bytes()).hexdigest()
    files = [path.stat().st_size for path in folder.iterdir() if path.name != "manifest.json"]
    assert said["bytes"] == sum(files)
    whole = Embedding.load(workspace / "embeddings" / "e")
    assert np.array_equal(crop.entities, whole.entities[:, :10])
    name = pl.Series(["u00001é"])
    assert np.array_equal(crop.score(name, ["r1"], name), whole.crop(10).score(name, ["r1"], name))


@pytest.mark.parametrize("dim", DIMS)
def test_an_embedding_keeps_the_contract_of_crops(
    workspace: Path, tmp_path: Path, dim: int
) -> None:
    folder = workspace / "embeddings" / "e"
    assert_maker(lambda: Embedding.load(folder).crop(dim), tmp_path / "contract")


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["--tier", "phone", "--dtype", "int8", "--users-only"], {"rows": 100, "dtype": "int8"}),
        (["--dim", "40", "--format", "npz", "--dtype", "float16"], {"format": "npz", "dim": 40}),
        (["--dim", "5", "--format", "parquet", "--no-relations"], {"relations": 0}),
        (["--tier", "car", "--set", "crop.tiers.car={dim: 5, dtype: int8}"],
         {"dim": 5, "dtype": "int8", "tier": "car"}),
        (["--dim", "20", "--allow-untrained"], {"dim": 20, "untrained": True, "tier": None}),
    ],
)  # fmt: skip
def test_crop_takes_wishes(workspace: Path, words: list[str], facts: dict[str, object]) -> None:
    code, said, remarks = medapps(workspace, "crop", *words)
    assert code == 0 and {key: said[key] for key in facts} == facts
    assert_sound(load_crop(Path(said["artifact"])))
    assert ("Warning" in remarks) == said["untrained"]


def test_crop_fits_a_budget(workspace: Path) -> None:
    _, large, _ = medapps(workspace, "crop", "--budget", "1MB")
    assert (large["dim"], large["dtype"]) == (40, "float32")
    for budget, dtype in ((30, "float16"), (20, "int8")):  # rather than a smaller dim
        _, less, _ = medapps(workspace, "crop", "--budget", f"{budget}kB")
        assert (less["dim"], less["dtype"]) == (40, dtype)
        files = Path(less["artifact"]).iterdir()
        assert sum(path.stat().st_size for path in files) <= budget * 1000
    _, least, _ = medapps(workspace, "crop", "--budget", "14kB")
    assert least["dim"] == 10
    _, small, _ = medapps(workspace, "crop", "--budget", "1MB", "--dtype", "int8")
    assert (small["dim"], small["dtype"]) == (40, "int8")


def test_crop_keeps_a_share_of_quality(workspace: Path) -> None:
    code, said, _ = medapps(workspace, "crop", "--keep", "0.99")
    assert code == 0 and said["dim"] == 40  # random vectors: every number counts
    curve = {(row["dim"], row["dtype"]): row for row in said["retention"]}
    assert set(curve) == {(d, t) for d in DIMS for t in ("float32", "float16", "int8")}
    assert curve[40, "float32"]["kept"] == 1 > curve[5, "float32"]["kept"]
    lower = (curve[10, "float32"]["kept"] + curve[5, "float32"]["kept"]) / 2
    assert medapps(workspace, "crop", "--keep", str(lower))[1]["dim"] == 10


def test_quality_is_measured_on_what_the_training_held_out(tmp_path: Path) -> None:
    code, said, _ = medapps(make_workspace(tmp_path, held_out=0.2), "crop", "--keep", "0.99")
    assert code == 0 and said["dim"] == 40, said
    assert said["retention"][-1]["mrr"] > 0.9  # 40 numbers rank every triple first


def test_a_finished_crop_is_kept_and_an_output_needs_force(workspace: Path, tmp_path: Path) -> None:
    first = medapps(workspace, "crop", "--dim", "10")[1]["artifact"]
    made = load_crop(Path(first)).manifest
    assert medapps(workspace, "crop", "--dim", "10")[1]["artifact"] == first
    assert load_crop(Path(first)).manifest == made
    out = str(tmp_path / "out")
    assert medapps(workspace, "crop", "--dim", "10", "--out", out)[0] == 0
    code, said, _ = medapps(workspace, "crop", "--dim", "5", "--out", out)
    assert code == 2 and "exists already. Use --force" in said["error"]
    assert load_crop(Path(out)).dim == 10
    assert medapps(workspace, "crop", "--dim", "5", "--out", out, "--force")[0] == 0
    assert load_crop(Path(out)).dim == 5


def test_ids_come_from_files(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("u00003é\n\nu00001é\n")
    pl.DataFrame({"n": [1], "user": ["u00005é"]}).write_csv(tmp_path / "ids.csv")
    said = medapps(workspace, "crop", "--dim", "5", "--ids", str(tmp_path / "ids.txt"))[1]
    assert load_crop(Path(said["artifact"])).entity_ids.names().to_list() == ["u00001é", "u00003é"]
    said = medapps(workspace, "crop", "--dim", "5", "--ids", str(tmp_path / "ids.csv"))[1]
    assert said["rows"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dim", "50"], "nearest 40. Use --dim 40."),
        (["--dim", "20"], "trained are 5, 10, 40, nearest 10 and 40"),
        ([], "No size was asked for. Give one of --dim 10"),
        (["--dim", "5", "--tier", "phone"], "More than one size"),
        (["--tier", "toaster"], "no tier 'toaster'"),
        (["--tier", "pc"], "dim 100 was not trained"),
        (["--budget", "many"], "--budget takes a size such as 64MB"),
        (["--budget", "2kB"], "Nothing fits into 2.0 kB"),
        (["--budget", "1MB", "--format", "parquet"], "Use --format safetensors or npz"),
        (["--keep", "1.5"], "--keep takes a share between 0 and 1"),
        (["--dim", "5", "--dtype", "int4"], "crop.dtype"),
        (["--dim", "5", "--ids", "no-such-file"], "There is no file no-such-file"),
        (["--dim", "5", "--method", "pca"], "medapps baseline pca --dim 5"),
        (["--dim", "5", "--embedding", "nowhere"], "holds no embedding"),
    ],
)
def test_wrong_wishes_end_with_2_and_a_way_out(
    workspace: Path, words: list[str], message: str
) -> None:
    code, said, _ = medapps(workspace, "crop", *words)
    assert code == 2 and message in said["error"]
    assert not (workspace / "crops").exists()


def test_an_empty_workspace_says_how_to_begin(tmp_path: Path) -> None:
    code, said, _ = medapps(tmp_path, "crop", "--dim", "10")
    assert code == 2 and "holds no embedding. Train one: medapps train" in said["error"]


def test_similar_names_the_nearest_users(workspace: Path) -> None:
    code, said, _ = medapps(workspace, "similar", "u00001é", "--dim", "10", "-k", "4")
    assert code == 0 and said["exact"] and said["recall"] == 1
    crop = Embedding.load(workspace / "embeddings" / "e").crop(10)
    me = crop.vectors(["u00001é"])[0]
    users = crop.entity_ids.names(crop.users)
    order = np.argsort(np.linalg.norm(crop.rows(crop.users) - me, axis=1))[1:5]
    assert [row["neighbour"] for row in said["neighbours"]] == users[order].to_list()
    code, said, _ = medapps(workspace, "similar", "ghost", "--dim", "10")
    assert code == 2 and "'ghost' is not in this crop" in said["error"]


def test_similar_takes_a_crop_of_another_type(workspace: Path) -> None:
    made = medapps(workspace, "crop", "--dim", "10", "--dtype", "int8")[1]["artifact"]
    said = medapps(workspace, "similar", "u00001é", "--crop", made, "-k", "2", "--all")[1]
    assert said["dim"] == 10 and len(said["neighbours"]) == 2


def test_similar_by_index_reports_its_recall(workspace: Path) -> None:
    pytest.importorskip("faiss")
    said = medapps(workspace, "similar", "u00001é", "--dim", "10", "-k", "4", "--approximate")[1]
    assert not said["exact"] and 0 < said["recall"] <= 1
    assert list((workspace / "indexes").glob("*/*.faiss"))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_tracked_crop_is_a_model_under_its_tier(workspace: Path) -> None:
    import mlflow

    from medapps.tracking import tracking_uri

    code, said, _ = medapps(workspace, "crop", "--keep", "0.99", tracked=True)
    assert code == 0 and said["run_id"]
    medapps(workspace, "crop", "--tier", "phone", tracked=True)
    uri = tracking_uri(workspace)
    client = mlflow.MlflowClient(uri, registry_uri=uri)
    run = client.get_run(said["run_id"])
    assert run.data.metrics["bytes"] == said["bytes"]
    assert run.data.metrics["mrr_int8"] > 0 and run.info.status == "FINISHED"
    files = {item.path for item in client.list_artifacts(said["run_id"])}
    assert {"retention.png", "retention.csv"} <= files
    phone = client.get_model_version_by_alias("medapps-crop", "phone")
    assert client.get_run(phone.run_id).data.tags["dim"] == "10"


def test_force_replaces_no_data_set_and_no_foreign_project(workspace: Path, tmp_path: Path) -> None:
    from medapps.graph.synth import synthesize

    synthesize(tmp_path / "data", "tiny")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "manifest.json").write_text('{"name": "an extension"}')
    for name in ("data", "project"):
        before = {path: path.read_bytes() for path in (tmp_path / name).iterdir()}
        out = str(tmp_path / name)
        code, said, _ = medapps(workspace, "crop", "--dim", "5", "--out", out, "--force")
        assert code == 2 and "so it is not replaced" in said["error"]
        assert {path: path.read_bytes() for path in (tmp_path / name).iterdir()} == before


def test_a_baseline_is_not_replaced_by_a_crop_of_itself(workspace: Path) -> None:
    source = workspace / "crops" / "p"
    replace(make_crop(dim=5), method="pca").save(source)
    words = ["crop", "--dim", "5", "--method", "pca", "--dtype", "int8", "--out", str(source)]
    code, said, _ = medapps(workspace, *words, "--force")
    assert code == 2 and "is what the crop is cut from" in said["error"]
    assert load_crop(source).dtype == "float32"


@pytest.mark.parametrize("name", ["w[1]", "a?b", "a%20b"])
def test_a_workspace_is_taken_by_its_very_name(workspace: Path, name: str) -> None:
    place = workspace.rename(workspace.with_name(name))
    code, said, _ = medapps(place, "crop", "--dim", "10", "--format", "parquet")
    assert code == 0 and Path(said["artifact"]).is_relative_to(place)
    code, said, _ = medapps(place, "similar", "u00001é", "--crop", said["artifact"])
    assert code == 0 and len(said["neighbours"]) == 20
    code, said, _ = medapps(place, "rank", "--split", "valid")
    assert code == 0 and said["dims"]["40"]["mrr"] > 0.9
    code, said, _ = medapps(place, "compare")
    assert code == 0 and said["rows"]


def test_hidden_folders_are_no_results(workspace: Path) -> None:
    assert medapps(workspace, "rank", "--split", "valid")[0] == 0
    before = medapps(workspace, "compare", "--force")[1]["rows"]
    for kind in ("reports", "graphs", "embeddings"):
        for path in sorted((workspace / kind).iterdir()):
            if path.is_dir():
                shutil.copytree(path, path.with_name(f".{path.name}.part"))
    newer = next((workspace / "reports").glob(".*.part"))
    report = Report.load(newer)
    report.save(newer.with_name(".z.old"))
    (newer / "units.safetensors").write_bytes(b"cut")
    assert medapps(workspace, "compare", "--force")[1]["rows"] == before
    assert medapps(workspace, "crop", "--dim", "5")[0] == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_killed_registration_is_made_up_for(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    import medapps.stages.crop as stage
    from medapps.tracking import tracking_uri

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    words = ("crop", "--tier", "phone")
    with monkeypatch.context() as patch:
        patch.setattr(stage, "log_crop", killed)
        assert medapps(workspace, *words, tracked=True)[0] == 130
    assert len(list((workspace / "crops").glob("[!.]*"))) == 1  # the folder is whole
    client = mlflow.MlflowClient(tracking_uri(workspace), tracking_uri(workspace))
    versions = []
    for _ in range(2):
        assert medapps(workspace, *words, tracked=True)[0] == 0
        phone = client.get_model_version_by_alias("medapps-crop", "phone")
        versions.append(phone.version)
    assert [int(version) for version in versions] == [1, 1]  # and not once more
