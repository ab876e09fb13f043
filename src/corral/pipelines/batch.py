"""A plan with all that its records have in common worked out, and then one after the other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from corral.core.errors import PresetNotFound, TooManyRecords
from corral.core.images.pipeline import (
    MOST_AT_ONCE,
    MOST_PIXELS,
    SKETCH,
    STAGES,
    LearningStep,
    Lora,
    Record,
    Upscale,
    canonical,
    largest,
)
from corral.pipelines import matrix, packs, seeds, stages, variants
from corral.pipelines.config import PlanConfig, Txt2ImgSettings, merge, swept
from corral.pipelines.mistakes import convert, invalid, near, suggestion
from corral.pipelines.plan import BatchPlan, Row, Variants

_SETTINGS = tuple(
    name
    for name in Txt2ImgSettings.__struct_fields__
    if name in Record.__struct_fields__ and name != "seed"
)
_NOT_LEFT_OPEN = {"sampler": "euler", "scheduler": "normal"}
"""No server may choose these for itself."""
_LORA = re.compile(r"<lora:([^:<>]+)(?::([^:<>]*))?>")
"""In a prompt, where WebUI's users write them."""


class Batch:
    def __init__(
        self,
        plan: BatchPlan,
        presets: Mapping[str, object],
        *,
        seed: int,
        most: int,
    ) -> None:
        self._plan = plan
        self.seed = seed if plan.seed is None else plan.seed
        self.warnings: list[str] = []
        self._rows = self._read_rows()
        base = _preset(plan.preset, presets) if plan.preset else plan.base
        merged = merge(base or PlanConfig(), plan.overrides)
        self._configs = swept(merged, plan.sweep, limit=most)
        asked = variants.resolved(plan.variants or Variants(), self.seed)
        self._variants = variants.expand(asked, limit=most)
        self.variants_digest = variants.digest(asked) if plan.variants else ""
        self._mode, self._base_given = asked.seed_mode, asked.base_seed is not None
        self._seeds = seeds.Seeds(
            self.seed,
            asked.seed_mode,
            asked.base_seed,
            variants=len(self._variants),
            widest=self._widest(),
        )
        self._templates: dict[bool, list[list[Record]]] = {}
        self._refuse_clashes()
        self._refuse_too_many(most)
        self._warn()

    @property
    def count(self) -> int:
        rows = self._rows.count
        return rows * len(self._configs) * len(self._variants) * self._plan.batches

    def drafts(self) -> Iterator[Record]:
        """In order, and without ids yet."""
        batches, chosen = range(self._plan.batches), self._seeds
        for number, (where, row) in enumerate(self._rows):
            positive, tagged = taken_out(row.positive, where)
            own_loras = (*row.loras, *tagged)
            inputs = row.inputs or self._plan.inputs
            for config, templates in zip(self._configs, self._alike(bool(inputs)), strict=True):
                own = seeds.given(row.seed, config.txt2img.seed if config.txt2img else None)
                for template in templates:
                    record = replace(
                        template,
                        positive=positive,
                        negative=row.negative,
                        loras=joined(template.loras, own_loras),
                        inputs=inputs,
                        row=number,
                    )
                    size, variant = record.batch_size, record.variant_index
                    for batch in batches:
                        seed = chosen.of(own, variant, batch, size)
                        yield replace(record, batch_index=batch, seed=seed)

    def _alike(self, with_inputs: bool) -> list[list[Record]]:
        """For each config, for each variant: a record that lacks only what is a row's own."""
        if with_inputs not in self._templates:
            self._templates[with_inputs] = [
                self._template(config, number, with_inputs)
                for number, config in enumerate(self._configs)
            ]
        return self._templates[with_inputs]

    def _template(self, config: PlanConfig, number: int, with_inputs: bool) -> list[Record]:
        plan = self._plan
        chain = stages.chain(config, plan.stages, inputs=("image",) if with_inputs else ())
        samples = any(not isinstance(stage, Upscale) for stage in chain)
        common = Record(
            positive="",
            stages=chain,
            backend=plan.backend,
            pack=self._pack,
            config_index=number,
            variants=self.variants_digest,
            output=plan.output,
            learning=_step(plan.learning, number),
            **(_sampling(config) if samples else {}),
        )
        found = []
        for index, variant in enumerate(self._variants):
            record = replace(common, variant_index=index, **variant)
            if not record.backend and record.model == SKETCH:
                record = replace(record, backend=SKETCH)
            if samples and not record.model and record.backend != SKETCH:
                raise invalid(
                    "base.txt2img.model",
                    "no model is named, and a worker must not choose one. Name it, or say "
                    "`backend: sketch` for images without a model.",
                )
            _refuse_impossible(record)
            found.append(canonical(record))
        return found

    def _read_rows(self) -> matrix.Fill:
        plan, self._pack, where = self._plan, "", "prompts"
        rows = [Row(positive=one) if isinstance(one, str) else one for one in plan.prompts]
        if not rows and plan.pack is None:
            rows = [Row(inputs=(one,)) for one in plan.inputs]
        asked = plan.matrix
        if plan.pack is not None:
            pack = packs.parse(plan.pack)
            self._pack, rows, where = pack.name or plan.name, list(pack.rows), "pack.prompts"
            self.warnings += pack.warnings
            asked = asked or pack.matrix
        given = asked.rng_seed if asked else None
        rng_seed = seeds.drawn(self.seed, "matrix") if given is None else given
        return matrix.Fill(rows, asked, rng_seed, where)

    def _refuse_clashes(self) -> None:
        axes = self._plan.variants.axes if self._plan.variants else None
        for path in self._plan.sweep:
            stage, _, name = path.partition(".")
            if stage == "txt2img" and getattr(axes, name, None):
                raise invalid(
                    f"sweep.{path}", f"`variants.axes.{name}` sets it too. Leave one of them out."
                )

    def _refuse_too_many(self, most: int) -> None:
        if self.count > most:
            raise TooManyRecords(
                f"The plan has {self.count:,} records (rows × configs × variants × batches: "
                f"{self._rows.count:,} × {len(self._configs):,} × {len(self._variants):,} × "
                f"{self._plan.batches:,}). At most {most:,} are built at once: use "
                "`max_variants` or `matrix.limit`, or split the plan.",
                details={"count": self.count, "limit": most},
            )

    def _widest(self) -> int:
        """The largest number of images that a record has."""
        sizes: list[int] = [1, *(one.get("batch_size", 1) for one in self._variants)]
        sizes += [one.txt2img.batch_size or 1 for one in self._configs if one.txt2img]
        return max(sizes)

    def _warn(self) -> None:
        plan, told = self._plan, self.warnings
        for stage in STAGES:
            override = getattr(plan.overrides, stage)
            if override is not None and not override.apply:
                told.append(f"`overrides.{stage}` is switched off: the base stays as it is.")
        told += [f"No prompt has the slot [[{name}]] of the matrix." for name in self._rows.idle]
        told += [
            f"`{where}` has [[…]] and there is no matrix: it stays as written."
            for where in self._rows.unfilled
        ]
        step = {"none": 64, "fixed": 1, "per_variant": len(self._variants)}[self._mode]
        if plan.batches > 1 and self._widest() > step:
            told.append(
                f"With `seed_mode: {self._mode}` copies of a batch are {step} apart, and the seeds "
                "of a record's images 1: some images will come twice."
            )
        if self._mode == "none" and self._base_given:
            told.append("`variants.base_seed` means nothing with `seed_mode: none`.")
        told += self._swept_in_vain()

    def _swept_in_vain(self) -> Iterator[str]:
        if self._plan.stages is not None:
            for path in self._plan.sweep:
                stage = path.partition(".")[0]
                if stage != "txt2img" and stage not in self._plan.stages:
                    yield f"`sweep.{path}` changes a stage that does not run."


def _preset(name: str, presets: Mapping[str, object]) -> PlanConfig:
    """A named base: checked as one that stands in the plan."""
    if name not in presets:
        known = sorted(presets)
        hint = suggestion(name, known, "`corral presets` lists those that are there.")
        raise PresetNotFound(
            f"No preset is called {name!r}. {hint}",
            details={"path": "preset", "near": near(name, known)},
        )
    return convert(presets[name], PlanConfig, where=f"preset {name}")


def _refuse_impossible(record: Record) -> None:
    """What would only fail on a worker, after it had taken all of its memory."""
    pixels = largest(record)
    for count, most in ((1, MOST_PIXELS), (record.batch_size, MOST_AT_ONCE)):
        if pixels * count > most:
            raise invalid(
                "base",
                f"with what enlarges them, {count} of its images {'has' if count == 1 else 'have'} "
                f"{pixels * count:,} pixels; at most {most:,} are rendered. Take a smaller size, "
                "factor or batch_size.",
            )
    for name in (record.model, record.vae, record.sampler, record.scheduler):
        if not name.isprintable():
            raise invalid("base", f"the name {name[:80]!r} holds what cannot be printed.")


def _sampling(config: PlanConfig) -> dict[str, Any]:
    settings = config.txt2img or Txt2ImgSettings()
    given = {name: value for name in _SETTINGS if (value := getattr(settings, name)) is not None}
    given["loras"] = joined((), settings.loras or ())
    return _NOT_LEFT_OPEN | given


def _step(learning: LearningStep, number: int) -> LearningStep:
    """Of a learning run each config is a step, counted from the plan's own."""
    return replace(learning, step=learning.step + number) if learning.enabled else LearningStep()


def taken_out(prompt: str, where: str) -> tuple[str, tuple[Lora, ...]]:
    """The prompt without its tags, and what they said.

    >>> taken_out("a castle <lora:mist:0.5>, rain", "prompts[0]")
    ('a castle, rain', (Lora(name='mist', weight=0.5),))
    """
    if "<lora:" not in prompt:
        return prompt, ()
    found, kept, end = [], [], 0
    for tag in _LORA.finditer(prompt):
        kept.append(prompt[end : tag.start()].rstrip())
        name, weight, end = tag[1], tag[2], tag.end()
        try:
            number = float(weight) if weight else 1.0
        except ValueError:
            number = float("nan")
        if not -10 <= number <= 10:
            raise invalid(where, f"<lora:{name}:{weight}> needs a weight from -10 to 10.")
        found.append(Lora(name=name, weight=number))
    left = "".join([*kept, prompt[end:]]).strip()
    if "<lora:" in left:
        raise invalid(where, "a <lora:…> in it is not of the form <lora:name:weight>.")
    return left, tuple(found)


def joined(base: tuple[Lora, ...], more: tuple[Lora, ...]) -> tuple[Lora, ...]:
    """Each once, in order of appearance; the last weight given holds."""
    if not more:
        return base
    return tuple({one.name: canonical(one) for one in (*base, *more)}.values())
