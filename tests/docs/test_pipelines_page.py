"""docs/pipelines.md: its plan gives the records that it shows, and no key is left out."""

from __future__ import annotations

import msgspec
import yaml

from corral.core.images.pipeline import stage_name
from corral.pipelines import BatchPlan, Built, build, parse
from corral.pipelines import config as settings
from corral.pipelines.plan import Axes, Matrix, Row
from tests.docs.pages import blocks, codes, rows, text

PAGE = "docs/pipelines.md"
HEAD = "row config variant batch  prompt          model steps cfg_scale seed"


def shown(built: Built) -> list[str]:
    told = [
        f"{one.row:>3} {one.config_index:>6} {one.variant_index:>7} {one.batch_index:>5}  "
        f"{one.positive}  {one.model} {one.steps:>8} {one.cfg_scale:>9g} {one.seed:>4}"
        for one in built.records
    ]
    stages = ", ".join(map(stage_name, built.records[0].stages))
    (vram_gb,) = {needs.vram_gb for needs in built.needs}
    last = f"{len(told)} records of {stages}; each needs {vram_gb:g} GB of VRAM"
    return [HEAD, *told[:7], "  …", told[-1], last]


def test_the_plan_gives_what_the_page_shows() -> None:
    block, images = (one for one in blocks(PAGE) if one.kind == "yaml")
    built = build(parse(yaml.safe_load(block.text)))
    assert block.output is not None
    assert shown(built) == block.output.splitlines()
    assert not built.warnings
    (record,) = build(parse(yaml.safe_load(images.text))).records
    assert record.inputs == ("photos/*.png",)


def test_every_key_of_a_plan_is_there() -> None:
    named = {key for cell in rows(PAGE) for key in cell.split(", ")} | codes(PAGE)
    for struct in (BatchPlan, Row, Matrix, Axes, settings.PlanConfig, settings.Txt2ImgSettings):
        missing = {one.encode_name for one in msgspec.structs.fields(struct)} - named
        assert not missing, f"{PAGE} does not name {missing} of {struct.__name__}"
    for name in ("none", "fixed", "per_variant", "fanout", "sequential", "rotate", "random"):
        assert f"| `{name}` |" in text(PAGE)
