"""Templates: kernels with tunable parameters, found below ``templates/kernels/<backend>/<operator>/``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any

from kforge.backends import expressions, rendering
from kforge.backends.cpp.compilers import FAMILIES
from kforge.backends.expressions import ExpressionError
from kforge.backends.features import KNOWN, lanes
from kforge.backends.header import Header, Param, TemplateError, parse
from kforge.backends.launching import bound
from kforge.backends.rendering import RenderLimits
from kforge.core.dtypes import WeightFormat
from kforge.core.layout import Layout
from kforge.core.paths import shipped
from kforge.core.target import Target
from kforge.core.trial import Candidate, NumericsClass
from kforge.core.workload import Attr, Problem, attrs, stable_hash

__all__ = ["Param", "RenderLimits", "Template", "TemplateError", "layouts", "load"]

Params = dict[str, Attr]

COMMENTS = {"triton": "#"}  # what begins a comment, by language; "//" elsewhere
_MAX_POINTS = 200_000
_MAX_STEPS = 4 * _MAX_POINTS  # of a walk through them, those that a constraint rules out included


@dataclass(frozen=True)
class Template:
    """A Jinja file with a header. Make them with ``load``."""

    root: Path  # the folder that includes are relative to
    path: str  # below root, for instance "cpp/linear/vnni_panel.cc.j2"
    hash: str  # of this file and of everything that it includes
    header: Header
    trusted: bool  # shipped: rendered in this process; others in a bounded child
    limits: RenderLimits = field(default=RenderLimits(), compare=False)

    @property
    def backend(self) -> str:
        return self.path.split("/", 1)[0]

    @property
    def operator(self) -> str:
        return self.header.operator

    @property
    def version(self) -> int:
        return self.header.version

    @property
    def numerics(self) -> NumericsClass:
        return self.header.numerics

    @property
    def requires(self) -> tuple[str, ...]:
        return self.header.requires

    @property
    def demand(self) -> int:
        """How much of a target it uses, as far as its requirements say: the greatest that fits is the default."""
        return len(self.requires)

    @property
    def params(self) -> tuple[Param, ...]:
        return self.header.params

    @property
    def constraints(self) -> tuple[str, ...]:
        return self.header.constraints

    @property
    def summary(self) -> str:
        return self.header.summary

    def applies(self, problem: Problem, target: Target) -> str | None:
        """None when the template can serve the problem on the target, else the reason why not. Raises TemplateError."""
        if problem.operator != self.operator:
            return f"it is for {self.operator}, not {problem.operator}"
        if self.backend not in target.backends:
            return f"{target.name} is built for with {' or '.join(target.backends) or 'nothing'}, not {self.backend}"
        if missing := [name for name in self.requires if name not in target.features]:
            return f"{target.name} lacks {', '.join(missing)}"
        if self.header.applies and not self._holds(self.header.applies, "applies", _values(problem), target):
            return f"the problem is outside '{self.header.applies}'"
        if next(self._points(problem, target), None) is None:
            return "no parameter set satisfies its constraints here"
        return None

    def space(self, problem: Problem, target: Target) -> list[Params]:
        """Every legal parameter set once, the first parameter varying slowest. Raises TemplateError."""
        points = []
        for point in self._points(problem, target):
            points.append(point)
            if len(points) > _MAX_POINTS:
                raise TemplateError(self.path, 0, f"more than {_MAX_POINTS} parameter sets; add constraints")
        return points

    def defaults(self, problem: Problem, target: Target) -> Params:
        """The declared defaults when they are legal here, else the legal set nearest to them. Raises TemplateError.

        Near: the smallest sum, over parameters, of steps between choices; the earlier set of two that are equally near.
        """
        declared = {param.name: param.default for param in self.params}
        if self._legal(declared, problem, target):
            return declared
        best = min(self._points(problem, target), key=self._distance, default=None)
        if best is None:
            raise TemplateError(self.path, 0, f"no parameter set is legal for {problem.key} on {target.name}")
        return best

    def render(self, problem: Problem, target: Target, params: Mapping[str, Attr], *, proposer: str = "builtin",
               parent: str = "") -> Candidate:
        """The candidate of these parameters (all of them, legal here). Raises TemplateError."""
        chosen = {param.name: params[param.name] for param in self.params if param.name in params}
        if set(chosen) != set(params) or len(chosen) != len(self.params):
            wanted = ", ".join(param.name for param in self.params) or "none"
            raise TemplateError(self.path, 0, f"its parameters are {wanted}; given {', '.join(params) or 'none'}")
        if not self._legal(chosen, problem, target):
            text = ", ".join(f"{name}={value}" for name, value in chosen.items())
            raise TemplateError(self.path, 0, f"{text} violates the choices or constraints")
        used = layouts(problem)
        values = {**_values(problem), **chosen, "lanes": lanes(target.features),
                  "layout": dict(used[0][1].params) if used else {}}
        view = {"arch": target.arch, "features": list(target.features), "cores": target.cores}
        body = rendering.render(self.root, self.path, values, view, self.limits, trusted=self.trusted)
        # The compiler is part of the source's identity: two candidates that differ in it alone are two candidates.
        by = f", compiler {chosen['compiler']}" if "compiler" in chosen else ""
        mark = COMMENTS.get(self.backend, "//")
        source = f"{mark} {problem.key}\n{mark} template {self.path} version {self.version}{by}\n{body.strip()}\n"
        launches = tuple(bound(launch, problem, chosen, self.path) for launch in self.header.launches
                         if not launch.when or self._holds(launch.when, "when of a launch", values, target))
        return Candidate(problem, self.backend, self.path, self.hash, attrs(chosen), source, self.numerics, used,
                         proposer, parent, launches)

    def _holds(self, text: str, key: str, values: Mapping[str, Any], target: Target) -> bool:
        try:
            return expressions.holds(text, values, frozenset(target.features))
        except ExpressionError as error:
            raise TemplateError(self.path, 0, f"'{text}' in {key}: {error}") from None

    def _legal(self, params: Params, problem: Problem, target: Target) -> bool:
        return any(point == params for point in self._points(problem, target, params))

    def _distance(self, point: Params) -> int:
        return sum(abs(p.choices.index(point[p.name]) - p.choices.index(p.default)) for p in self.params)

    def _points(self, problem: Problem, target: Target, only: Params | None = None) -> Iterator[Params]:
        """Legal sets, depth first; a constraint prunes as soon as the parameters that it names are set. Raises
        TemplateError when so much is ruled out that a walk would never end."""
        static = _values(problem)
        due = _due(self)
        steps = count(1)

        def extend(depth: int, point: Params) -> Iterator[Params]:
            if next(steps) > _MAX_STEPS:
                raise TemplateError(self.path, 0, f"more than {_MAX_STEPS} sets of parameters to look at; let "
                                    "constraints name few parameters, the first ones first")
            values = {**static, **point}
            if not all(self._holds(text, "constraints", values, target) for text in due[depth]):
                return
            if depth == len(self.params):
                yield point
                return
            param = self.params[depth]
            choices = _choices(param, target)
            if param.when and not self._holds(param.when, f"when of '{param.name}'", values, target):
                choices = (param.default,)
            for choice in choices:
                if only is None or only[param.name] == choice:
                    yield from extend(depth + 1, {**point, param.name: choice})

        return extend(0, {})


def load(operator: str | None = None, folder: Path | None = None) -> list[Template]:
    """Templates of ``operator`` (all when None) below ``folder`` (the shipped ones when None), sorted by path.

    Templates outside the shipped folder are untrusted. Raises TemplateError for the first one that is broken.
    """
    ours = (shipped("templates") / "kernels").resolve()
    root = (folder or ours).resolve()
    if not root.is_dir():
        raise TemplateError(str(root), 0, "there is no such templates folder")
    found = []
    for file in sorted(root.glob(f"*/{operator or '*'}/*.j2")):
        if file.name.count(".") >= 2:  # NAME.EXT.j2 is a kernel; NAME.j2 is a part that kernels include
            found.append(_read(root, file.relative_to(root).as_posix(), root == ours))
    return found


def layouts(problem: Problem) -> tuple[tuple[str, Layout], ...]:
    """Layouts that kernels of this problem consume, by tensor; dense tensors are not listed."""
    if problem.operator in ("linear", "moe_linear"):
        gate_up = int(problem["epilogue"] in ("silu_gate", "swiglu_oai"))
        return (("w", Layout.of("panel", rows=problem.int("rows"), gate_up=gate_up)),)
    if problem.operator == "embedding":
        return (("table", Layout.of("panel", rows=problem.int("rows"), gate_up=0)),)
    return ()


def _read(root: Path, path: str, trusted: bool) -> Template:
    texts = rendering.sources(root, path)
    header = parse(path, texts[path])
    folder = path.split("/")[1]
    if header.operator != folder:
        raise TemplateError(path, 0, f"operator '{header.operator}' but it lies in the folder '{folder}'")
    if unknown := [name for name in header.requires if name not in KNOWN]:
        raise TemplateError(path, 0, f"requires unknown features: {', '.join(unknown)}")
    template = Template(root, path, stable_hash([[name, text] for name, text in texts.items()]), header, trusted)
    try:
        expressions.names(header.applies or "1")
        order = [param.name for param in header.params]
        for index, param in enumerate(header.params):
            if late := sorted(expressions.names(param.when or "1") & set(order[index:])):
                raise TemplateError(path, 0, f"when of '{param.name}' may name only earlier parameters, not {late[0]}")
        _due(template)
    except ExpressionError as error:
        raise TemplateError(path, 0, f"an expression of the header: {error}") from None
    return template


@lru_cache(maxsize=512)
def _due(template: Template) -> tuple[tuple[str, ...], ...]:
    """Constraints by the number of leading parameters that must be set before they can be evaluated."""
    order = [param.name for param in template.params]
    due: list[list[str]] = [[] for _ in range(len(order) + 1)]
    for text in template.constraints:
        used = expressions.names(text)
        due[max((order.index(name) + 1 for name in used if name in order), default=0)].append(text)
    return tuple(tuple(texts) for texts in due)


def _choices(param: Param, target: Target) -> tuple[Attr, ...]:
    """The choices; for ``compiler`` only those that the target has, since others would be the same candidate again."""
    if param.name != "compiler" or not target.compilers:
        return param.choices
    present = {FAMILIES.get(compiler.name, compiler.name) for compiler in target.compilers}
    return tuple(choice for choice in param.choices if choice in present) or (param.default,)


def _values(problem: Problem) -> dict[str, Any]:
    """Static attributes by name, and ``fmt``, the traits of the ``weight`` attribute where there is one."""
    values: dict[str, Any] = dict(problem.attributes)
    weight = str(values.get("weight", ""))
    if weight in set(WeightFormat):
        traits = WeightFormat(weight).traits
        values["fmt"] = {**asdict(traits), "bits_per_weight": traits.bits_per_weight}
    return values
