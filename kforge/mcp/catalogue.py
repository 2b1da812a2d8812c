"""Targets, operators, models and templates as a client may know them. Names are looked up, never opened as paths."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path

from kforge.agent.contracts import contract_of
from kforge.backends.templates import Template
from kforge.backends.templates import load as load_templates
from kforge.core.errors import KforgeError
from kforge.core.paths import cache_dir
from kforge.core.target import Target
from kforge.core.workload import Attr
from kforge.mcp import known
from kforge.mcp.failures import bad_input
from kforge.mcp.references import template_files
from kforge.mcp.subjects import workload_at
from kforge.models import load as load_model
from kforge.models.fetch import SOURCES
from kforge.models.graph import ModelShape, StepOptions
from kforge.models.synth_plan import SHAPES, FileFormat, plan, storable
from kforge.models.workloads import priced, workloads
from kforge.operators import get, names
from kforge.operators.axes import USUAL
from kforge.registry.ask import open_snapshot
from kforge.targets.files import list_targets, load_target

_SUFFIX = ".gguf"

# Axes at which describe_operator shows shapes where nobody asked for others: small ones.
EXAMPLES: Mapping[str, Mapping[str, Attr]] = {
    "embedding": {"V": 1024, "H": 256, "weight": "q8_0", "T": 8},
    "rms_norm": {"H": 256, "residual": 1, "T": 8},
    "linear": {"K": 256, "N": 256, "weight": "q4_0", "act": "a8", "epilogue": "none", "bias": 0, "M": 8},
    "rope_kv_write": {
        "Hq": 4,
        "Hkv": 2,
        "D": 64,
        "P": 64,
        "kv": "f16",
        "style": "norm",
        "T": 8,
        "pages": 8,
        "positions": 512,
    },
    "qk_norm_rope_kv_write": {
        "Hq": 4,
        "Hkv": 2,
        "D": 128,
        "P": 64,
        "kv": "f16",
        "style": "neox",
        "T": 8,
        "pages": 8,
        "positions": 512,
    },
    "paged_attention": {
        "Hq": 4,
        "Hkv": 2,
        "D": 64,
        "P": 64,
        "kv": "f16",
        "T": 8,
        "S": 8,
        "B": 8,
        "pages": 64,
        "max_context": 512,
    },
    "silu_mul": {"I": 512, "T": 8},
    "gather_rows": {"H": 256, "R": 4, "T": 8},
    "argmax": {"V": 1024, "R": 4},
    "moe_route": {"E": 32, "k": 4, "style": "chosen", "T": 8},
    "moe_linear": {
        "E": 8,
        "k": 2,
        "input": "token",
        "K": 256,
        "N": 256,
        "weight": "mxfp4",
        "act": "a8",
        "epilogue": "swiglu_oai",
        "bias": 1,
        "T": 8,
    },
    "moe_combine": {"H": 256, "k": 2, "T": 8},
}


def targets(host: Target) -> known.Targets:
    """The host first."""
    briefs = [_brief(host)]
    for name in list_targets():
        if name == host.name:
            continue
        try:
            briefs.append(_brief(load_target(name)))
        except KforgeError as error:
            briefs.append(known.TargetBrief(name=name, error=str(error)))
    return known.Targets(targets=briefs)


def _brief(target: Target) -> known.TargetBrief:
    sources = {
        "measured" if p.source.startswith("measured") else "vendor" for _, p in (*target.bandwidth, *target.peaks)
    }
    return known.TargetBrief(
        name=target.name,
        model=target.model,
        arch=target.arch,
        cores=target.cores,
        figures=" and ".join(sorted(sources)) or "none",
    )


def target(name: str, host: Target) -> known.TargetFacts:
    if name != host.name and name not in list_targets():
        raise bad_input(
            f"there is no target {name!r}; there are {', '.join(dict.fromkeys([host.name, *list_targets()]))}"
        )
    found = host if name == host.name else load_target(name)
    return known.TargetFacts(
        name=found.name,
        kind=found.kind,
        vendor=found.vendor,
        model=found.model,
        arch=found.arch,
        features=list(found.features),
        cores=found.cores,
        memory_bytes=found.memory_bytes,
        caches=[
            known.CacheFacts(level=c.level, bytes=c.bytes, shared_by=c.shared_by, line=c.line) for c in found.caches
        ],
        bandwidth=[
            known.PeakFacts(name=f"{n} threads", value=p.value, spread=p.spread, source=p.source)
            for n, p in found.bandwidth
        ],
        peaks=[known.PeakFacts(name=n, value=p.value, spread=p.spread, source=p.source) for n, p in found.peaks],
        compilers=[f"{c.name} {c.version}" for c in found.compilers],
        identity=found.identity,
    )


def operators() -> known.Operators:
    return known.Operators(
        operators=[
            known.OperatorBrief(
                name=name,
                summary=_text(name).partition("\n")[0],
                static_axes=list(get(name).static_axes),
                dynamic_axes=list(get(name).dynamic_axes),
            )
            for name in names()
        ]
    )


def _text(name: str) -> str:
    return inspect.cleandoc(type(get(name)).__doc__ or "")


def operator(name: str, axes: Mapping[str, Attr] | None, host: Target) -> known.OperatorFacts:
    """Raises KforgeError for an operator that there is not, or axes that it does not have."""
    if name not in names():
        raise bad_input(f"there is no operator {name!r}; there are {', '.join(names())}")
    workload = workload_at(name, axes or EXAMPLES[name], open_snapshot(), host)
    contract, cost = contract_of(workload), get(name).cost(workload)
    return known.OperatorFacts(
        name=name,
        version=contract.version,
        text=_text(name),
        static_axes=list(get(name).static_axes),
        dynamic_axes=list(contract.axes),
        scalars=list(contract.scalars),
        usual={**get(name).usual, **USUAL.get(name, {})},
        axes={**workload.problem.attributes, **workload.axes},
        tensors=[known.TensorFacts(**vars(t)) for t in contract.tensors],
        order=contract.order,
        panel=contract.panel,
        bucket=get(name).bucket(workload.problem, workload.axes),
        streamed_bytes=cost.streamed_bytes,
        hot_bytes=cost.hot_bytes,
        operations=dict(cost.operations),
    )


class Models:
    """Models by name: those that whoever started the server named, those in the cache, and well-known shapes."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)

    def list(self) -> known.Models:
        files = [known.ModelBrief(name=name, what="a model file or folder") for name in self._files()]
        shapes = [
            known.ModelBrief(name=f"{shape}:{kind}", what="a shape with random weights, for its workloads")
            for shape, config in SHAPES.items()
            for kind in FileFormat
            if not shape.endswith("-test") and storable(config, kind)
        ]
        return known.Models(models=[*files, *shapes])

    def workloads(
        self, name: str, batch: Sequence[int], context: Sequence[int], prefill: int, options: StepOptions, host: Target
    ) -> known.Workloads:
        """Raises KforgeError for a model that there is not, or a context beyond it."""
        table = priced(workloads(self._shape(name), batch, context, prefill, options), host)
        return known.Workloads(
            model=name,
            rows=[
                known.WorkloadRow(
                    mode=row.row.mode.name,
                    call=row.row.kind.value,
                    operator=row.row.workload.problem.operator,
                    axes={**dict(row.row.workload.problem.static), **row.row.workload.axes},
                    count=int(row.row.workload.count),
                    limit_seconds=row.limit.seconds,
                    bound_by=row.limit.bound_by,
                    share=row.share,
                )
                for row in table
            ],
        )

    def file(self, name: str) -> Path:
        """The file of a model that can be run. Raises CallFailed."""
        files = self._files()
        if name not in files:
            known_files = ", ".join(files) or "none"
            raise bad_input(f"there is no model file {name!r} here to run; there is: {known_files}")
        return files[name]

    def _files(self) -> dict[str, Path]:
        cache = cache_dir() / "models"
        cached = {file.stem: file for file in sorted(cache.glob(f"*{_SUFFIX}"))}
        # One that is being written has another ending.
        folders = {file.parent.name: file.parent for file in sorted(cache.glob("*/config.json"))
                   if file.parent.suffix != ".part"}
        fetched = {
            name: path
            for name, source in SOURCES.items()
            if (path := cache_dir() / "models" / source.file_name).is_file()
        }
        return {**folders, **cached, **fetched, **{path.name.removesuffix(_SUFFIX): path for path in self._paths}}

    def _shape(self, name: str) -> ModelShape:
        shape, separator, kind = name.partition(":")
        if separator and shape in SHAPES:
            return plan(shape, kind)
        files = self._files()
        if name in files:
            return load_model(files[name])
        if name in SOURCES:
            raise bad_input(f"{name} is not on this machine yet: its user fetches it with kforge model get {name}")
        raise bad_input(
            f"there is no model {name!r} here; see list_models. Whoever starts the server may name more "
            "(kforge mcp --model PATH)"
        )


def templates(operator: str) -> known.Templates:
    if operator and operator not in names():
        raise bad_input(f"there is no operator {operator!r}; there are {', '.join(names())}")
    return known.Templates(
        templates=[_template(t) for t in load_templates(operator or None)],
        parts=[path for path in template_files() if path.rsplit("/", 1)[-1].count(".") < 2],  # NAME.j2, no NAME.cc.j2
    )


def _template(template: Template) -> known.TemplateBrief:
    return known.TemplateBrief(
        path=template.path,
        operator=template.operator,
        numerics=template.numerics.value,
        summary=template.summary,
        requires=list(template.requires),
        applies=template.header.applies,
        params=[
            known.ParamFacts(name=p.name, choices=list(p.choices), default=p.default, when=p.when)
            for p in template.params
        ],
    )
