"""Tiers, budgets and retention: which size a device gets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from medapps.config import parse_bytes, resolve, validate
from medapps.crop.crop import Crop
from medapps.crop.embedding import between, check_dim, cut
from medapps.crop.export import Export, chosen_rows, crop_bytes, export_crop, without_relations
from medapps.crop.quantize import DTYPES
from medapps.crop.select import fit_budget, log_curve, plot_curve, retention_curve, smallest_keeping
from medapps.crop.tiers import CropConfig, Tier, find_tier, tier_of
from medapps.errors import MedappsError
from medapps.graph.ids import IdMap
from medapps.model.rule import ScoreSpec
from medapps.stages.find import origin_of
from medapps.store import REPLACE
from tests.crop.conftest import make_crop


@dataclass(frozen=True)
class Nested:
    """Something with prefixes, as an embedding is."""

    full: Crop
    dims: tuple[int, ...] = (5, 10, 40)

    @property
    def specs(self) -> tuple[ScoreSpec, ...]:
        return tuple(ScoreSpec(scale=(40 / d) ** 0.25, margin=5.0) for d in self.dims)

    def crop(self, dim: int) -> Crop:
        assert self.full.relations is not None
        return replace(
            self.full,
            entities=self.full.entities[:, :dim],
            relations=self.full.relations[:, :dim],
            dim=dim,
            spec=self.specs[self.dims.index(dim)],
        )


@pytest.fixture
def nested() -> Nested:
    return Nested(make_crop(n=300, dim=40))


def test_tiers_are_named_and_users_add_theirs(tmp_path: Path) -> None:
    plain = CropConfig()
    assert {name: tier.dim for name, tier in plain.tiers.items()} == {
        "server": 500,
        "pc": 100,
        "phone": 10,
    }
    file = tmp_path / "c.yaml"
    file.write_text("tiers:\n  car: {dim: 50, dtype: int8}\n  phone: 20\n")
    config = resolve(CropConfig, file=file)
    assert find_tier(config, "car") == Tier(dim=50, dtype="int8")
    assert find_tier(config, "phone").dim == 20 and find_tier(config, "server").dim == 500
    assert tier_of(config, 50) == "car" and tier_of(config, 51) is None
    assert resolve(CropConfig, sets=["tiers.car.dim=50"]).tiers["car"].dim == 50
    with pytest.raises(MedappsError, match=r"no tier 'fone'; known are pc.*--tier phone"):
        find_tier(plain, "fone")
    with pytest.raises(MedappsError, match=r"tiers\.car\.dtype"):
        validate(CropConfig, {"tiers": {"car": {"dim": 5, "dtype": "int4"}}}, "x")


def test_an_untrained_dim_is_refused_with_the_nearest() -> None:
    assert check_dim(100, (10, 100, 500)) is None
    with pytest.raises(MedappsError) as caught:
        check_dim(50, (10, 100, 500))
    assert "trained are 10, 100, 500, nearest 10 and 100" in str(caught.value)
    assert "--dim 10, or --allow-untrained" in str(caught.value)
    with pytest.raises(MedappsError, match=r"nearest 500\. Use --dim 500\.$"):
        check_dim(501, (10, 100, 500), allow_untrained=True)
    with pytest.raises(MedappsError, match="nearest 10"):
        check_dim(0, (10, 100), allow_untrained=True)
    warning = check_dim(50, (10, 100, 500), allow_untrained=True)
    assert warning is not None and "never trained" in warning


def test_an_untrained_prefix_is_cut_and_tagged(nested: Nested, tmp_path: Path) -> None:
    crop, warning = cut(nested, 10)
    assert warning is None and "untrained" not in crop.about
    with pytest.raises(MedappsError, match="--allow-untrained"):
        cut(nested, 20)
    crop, warning = cut(nested, 20, allow_untrained=True)
    assert warning is not None and crop.dim == crop.width == 20
    assert np.array_equal(crop.entities, nested.full.entities[:, :20])
    assert crop.spec.scale == pytest.approx((40 / 20) ** 0.25)  # the power law, not a line
    saved = export_crop(crop, tmp_path / "a")
    assert saved.about["untrained"] is True
    assert between(2, nested.dims, nested.specs) == nested.specs[0]


@pytest.mark.parametrize(
    ("text", "count"),
    [("64MB", 64_000_000), ("64 MiB", 2**26), ("1.5g", 1_500_000_000), ("12", 12), ("2KiB", 2048)],
)
def test_sizes_are_read(text: str, count: int) -> None:
    assert parse_bytes(text) == count


def test_a_size_that_is_none_is_refused() -> None:
    for text in ("lots", "-3MB", "5 XB", ""):
        with pytest.raises(MedappsError, match="--budget takes a size such as 64MB"):
            parse_bytes(text)


@pytest.mark.parametrize("users_only", [False, True])
@pytest.mark.parametrize("relations", [False, True])
@pytest.mark.parametrize("integers", [False, True])
def test_the_bytes_foretold_are_those_written(
    tmp_path: Path, users_only: bool, relations: bool, integers: bool
) -> None:
    crop = make_crop(n=4000, integers=integers)
    rows = chosen_rows(crop, Export(users_only=users_only))
    for dtype in DTYPES:
        for form in ("safetensors", "npz"):
            folder = tmp_path / f"{dtype}{form}"
            export_crop(crop, folder, Export(dtype, form, users_only, relations=relations))
            written = sum(path.stat().st_size for path in folder.iterdir())
            told = crop_bytes(crop if relations else without_relations(crop), dtype, rows)
            assert told - 4 * 2**10 <= written <= told


def test_many_long_names_do_not_break_a_budget(tmp_path: Path) -> None:
    names = IdMap.of(pl.Series([f"a_rather_long_name_of_a_user_{i:09d}" for i in range(50_000)]))
    crop = Crop(np.zeros((50_000, 2), np.float32), names, 2, "med", ScoreSpec())
    some = np.arange(0, 50_000, 3, dtype=np.int32)
    for rows in (None, some):
        listed = None if rows is None else names.names(rows)
        export_crop(crop, tmp_path / "a", Export(names=listed), REPLACE)
        written = sum(path.stat().st_size for path in (tmp_path / "a").iterdir())
        assert written <= crop_bytes(crop, "float32", rows) <= written + 4 * 2**10


def test_the_largest_crop_that_fits_is_chosen(nested: Nested) -> None:
    crops = [nested.crop(dim) for dim in nested.dims]
    sizes = {(crop.dim, dtype): crop_bytes(crop, dtype) for crop in crops for dtype in DTYPES}
    for budget in [*sizes.values(), max(sizes.values()) + 10**9]:
        fit = fit_budget(budget, crops)
        fitting = {key for key, size in sizes.items() if size <= budget}
        dim = max(dim for dim, _ in fitting)
        best = next(dtype for dtype in DTYPES if (dim, dtype) in fitting)
        assert fit == (dim, best)
    with pytest.raises(MedappsError, match=r"Nothing fits into 1\.0 kB: .*dim 5 as int8.*--users"):
        fit_budget(1000, crops)
    assert fit_budget(10**9, crops, dtypes=["int8"]) == (40, "int8")


def _quality(crop: Crop) -> float:
    """Grows with the dim, is hurt by int8: known beforehand."""
    return {5: 0.20, 10: 0.29, 40: 0.30}[crop.dim] - (0.01 if crop.dtype == "int8" else 0)


def test_the_retention_curve_tells_dim_dtype_bytes_and_quality(nested: Nested) -> None:
    curve = retention_curve([nested.crop(dim) for dim in nested.dims], _quality)
    assert curve.columns == ["dim", "dtype", "bytes", "mrr", "kept"]
    assert curve["dim"].to_list() == [5] * 3 + [10] * 3 + [40] * 3
    assert curve.row(3)[0:2] == (10, "float32")
    assert curve.row(3)[3:] == pytest.approx((0.29, 0.29 / 0.30))
    assert smallest_keeping(curve, 0.96) == 10
    assert smallest_keeping(curve, 0.97) == 40
    assert smallest_keeping(curve, 1.0) == 40
    assert smallest_keeping(curve, 0.93, "int8") == 10
    with pytest.raises(MedappsError, match=r"No dim keeps 99% .* as int8; the best, dim 40, .*96"):
        smallest_keeping(curve, 0.99, "int8")
    with pytest.raises(MedappsError, match="--keep takes a share between 0 and 1, not 97"):
        smallest_keeping(curve, 97)


def test_the_curve_is_logged_and_plotted(nested: Nested, tmp_path: Path) -> None:
    from medapps.tracking import Run

    class Kept(Run):
        def __init__(self) -> None:
            self.seen: list[tuple[object, ...]] = []

        def metric(self, name: str, value: float, step: int | None = None) -> None:
            self.seen.append((name, value, step))

        def text(self, text: str, name: str) -> None:
            self.seen.append((name, pl.read_csv(text.encode()).shape))

        def figure(self, figure: object, name: str) -> None:
            self.seen.append((name,))

    curve = retention_curve([nested.crop(dim) for dim in nested.dims], _quality)
    run = Kept()
    log_curve(run, curve)
    assert ("mrr_float32", 0.29, 10) in run.seen
    assert ("retention.csv", (9, 5)) in run.seen and ("retention.png",) in run.seen
    plot_curve(curve).savefig(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 5000


def test_the_bytes_of_a_comparison_are_those_on_disk(nested: Nested, tmp_path: Path) -> None:
    crop = nested.crop(10)
    told = origin_of(crop, 10).cost["bytes"]
    export_crop(crop, tmp_path / "device")
    real = sum(file.stat().st_size for file in (tmp_path / "device").iterdir())
    assert real <= told <= real + 4096 and told > crop.nbytes
