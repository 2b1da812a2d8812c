"""Regions put together to the text of a template: its header, its functions, its scratch."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kforge.backends.generic.code import indented
from kforge.backends.generic.indices import Opaque
from kforge.backends.generic.nest import NestCode, Way
from kforge.backends.generic.plan import Nest, Plan, Product, Region, plan
from kforge.backends.generic.product import Function, ProductCode
from kforge.backends.generic.rewrites import simplified
from kforge.core.errors import KforgeError
from kforge.core.workload import Attr
from kforge.operators.graph import AXIS, Graph, Shape

_VARIABLE = re.compile(r"\b(?:in|out|t)\d+(?:_s\d+)?\b")
_LARGEST = 128 << 10  # bytes of a template: what the rendering reads
_Ways = Callable[[NestCode], tuple[Way, ...]]  # those of a nest that a template has
_SHALLOW = 64  # k: products up to here write more than they compute
_FAR = 16 << 20  # bytes of outputs: those of larger calls are written past the caches
_LEGAL_WIDTH = "(width == 16 and avx512f) or (width == 8 and avx2) or (width == 4 and not avx2)"


@dataclass(frozen=True)
class TemplateText:
    """``text`` belongs into a file ``name``.cc.j2."""

    name: str
    text: str


@dataclass(frozen=True)
class _Param:
    name: str
    choices: tuple[Attr, ...]
    default: Attr
    plain: str  # Jinja of its value where it is no parameter


def templates_for(graph: Graph, operator: str) -> list[TemplateText]:
    """Templates of class *relaxed* for an operator that computes ``graph``: ``plain``, whose choices are made, and
    ``tuned``, the same computation with parameters for all of them.

    One that would be larger than a template may be is left out. Raises KforgeError when none is left.
    """
    try:
        program = _Program(graph)
    except RecursionError:
        raise KforgeError(f"{operator} has steps nested too deeply for a kernel to be generated") from None
    made = [TemplateText("plain", program.plain(operator)), TemplateText("tuned", program.tuned(operator))]
    if not (fitting := [text for text in made if len(text.text) <= _LARGEST]):
        least = min(len(text.text) for text in made)
        raise KforgeError(
            f"{operator} takes {len(program.codes)} sweeps, and a template of {least} bytes: no kernel is"
            f" generated for it, as a template has at most {_LARGEST}; import a part of the function"
        )
    return fitting


class _Program:
    def __init__(self, graph: Graph) -> None:
        self.plan, self.codes = _planned(graph)
        self.graph = graph
        self.nests = [c for c in self.codes if isinstance(c, NestCode)]
        self.products = [c for c in self.codes if isinstance(c, ProductCode)]
        self.slots = _slots(self.plan)

    def plain(self, operator: str) -> str:
        header = _header(operator, "every choice made, for any target", [_COMPILER], [])
        fixed = [f"{{% set {p.name} = {p.plain} %}}" for p in self._params()]
        return "\n".join([header, *fixed, self._body(_first_way)]) + "\n"

    def tuned(self, operator: str) -> str:
        constraints = [_LEGAL_WIDTH]
        if self.products:
            constraints += [
                "m_tile * n_vectors + n_vectors <= (30 if width == 16 else 15)",
                "m_tile * n_vectors >= (24 if width == 16 else 12)",
            ]
        header = _header(operator, "vectors, tiles and blocks to be chosen", [*self._params(), _COMPILER], constraints)
        return header + "\n" + self._body(_every_way) + "\n"

    def _params(self) -> list[_Param]:
        """Beside a product, which takes most of the time, nests have few choices: a space is enumerated."""
        params = [_Param("width", (16, 8, 4), 16, "lanes")]
        if self.products:
            order = "tiles" if max(c.k for c in self.products) <= _SHALLOW else "panels"
            params += [
                _Param("m_tile", (4, 6, 8, 12, 14), 14, "14 if lanes == 16 else 6 if lanes == 8 else 4"),
                _Param("n_vectors", (2, 3, 4), 2, "2"),
                _Param("k_block", (256, 512), 256, "256"),
                _Param("m_block", (192, 384, 768), 384, "384"),
                _Param("n_block", (512, 2048), 2048, "2048"),
                _Param("order", ("panels", "tiles"), order, repr(order)),
            ]
        if any(c.shared for c in self.products):
            params.append(_Param("pack", ("own", "shared"), "own", "'own'"))
        if self.nests:
            params.append(_Param("unroll", (2, 4) if self.products else (1, 2, 4), 2, "2"))
        if columns := [c.column_choices for c in self.nests if c.columns]:
            tiles = min(columns, key=len)
            usual = tiles[len(tiles) // 2]
            params.append(_Param("columns", (usual,) if self.products else tuple(tiles), usual, str(usual)))
        if several := [c.ways for c in self.nests if len(c.ways) > 1]:
            choices = tuple(way.value for way in Way if any(way in ways for ways in several))
            params.append(_Param("way", choices, several[0][0].value, repr(several[0][0].value)))
        if any(not c.columns and not c.by_row for c in self.nests):
            params.append(_Param("chunk", (8192,) if self.products else (1024, 8192, 65536), 8192, "8192"))
        return [*params, _Param("stream", ("large", "never"), "large", "'large'")]

    def _body(self, ways: _Ways) -> str:
        lines = [
            "#include <kforge/abi.h>",
            "#include <kforge/freestanding.h>",
            "#include <kforge/vector_math.h>",
            "",
            "namespace {",
            "",
            "constexpr int64_t W = {{ width }};",
            "typedef kf::Vector<{{ width }}> V;",
            "typedef V::F F;",
            "",
            "constexpr int64_t up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }",
            "constexpr int64_t more(int64_t a, int64_t b) { return a > b ? a : b; }",
            "",
            _PUT,
            "",
        ]
        if self.products:
            lines += [*_sizes(max(c.k for c in self.products)), "", _MICRO, ""]
        lines += self._call(ways)
        for number, region in enumerate(self.codes):
            lines += ["", *self._functions(number, region, ways)]
        lines += ["", "}  // namespace", "", *self._entry()]
        return _BLANKS.sub("\n\n", indented(_each_line(lines)))

    def _functions(self, number: int, made: NestCode | ProductCode, ways: _Ways) -> list[str]:
        if isinstance(made, ProductCode):
            functions = made.functions(number)
        else:
            inside = _by_way(ways(made), made.lines)
            functions = [
                Function(
                    f"static __attribute__((noinline)) void region_{number}(const Call &c) {{",
                    ["float *const area = c.area;", "(void)area;", *inside],
                )
            ]
        lines: list[str] = []
        for function in functions:
            last = function is functions[-1]
            lines += [function.head, *_locals(function.body), *function.body, *["kf::streamed();"] * last, "}", ""]
        return lines

    # The call and its scratch

    def _variables(self) -> dict[str, str]:
        """Fields of the call by name: what fills them."""
        fields = {}
        tensors = [
            *(given.shape for given in self.graph.given),
            *(self.graph.shapes[name] for name in self.graph.outputs),
        ]
        names = [f"in{i}" for i in range(len(self.graph.given))] + [f"out{i}" for i in range(len(self.graph.outputs))]
        for i, (name, shape) in enumerate(zip(names, tensors, strict=True)):
            fields[name] = f"static_cast<{'const ' if name[0] == 'i' else ''}float *>(launch->tensors[{i}].data)"
            for dim in range(len(shape) - 1):
                fields[f"{name}_s{dim}"] = f"launch->tensors[{i}].strides[{dim}]"
        return fields

    def _call(self, ways: _Ways) -> list[str]:
        pointers: list[str] = []
        strides: list[str] = []
        for name in self._variables():
            (strides if "_s" in name else pointers).append(name)
        given = [name for name in pointers if name.startswith("in")]
        lines = ["struct Call {", "const kf_launch *launch;"]
        if given:
            lines.append(f"const float {', '.join('*' + name for name in given)};")
        own = [name for name in pointers if name not in given] + list(self.slots)
        lines.append(f"float {', '.join('*' + name for name in own)}, *packed, *area;")
        lines.append(f"int64_t {', '.join([*strides, 'B'])};")
        return [
            *lines,
            "int32_t thread, threads;",
            "bool far; /* the outputs are larger than a cache */",
            "};",
            "",
            *self._scratch(ways),
        ]

    def _scratch(self, ways: _Ways) -> list[str]:
        sizes = {slot: _floats(self.plan.scratch[pointer]) for pointer, slot in self.slots.items()}
        packed = "0"
        for product in self.products:
            if product.shared:
                packed = f"more({product.packed_floats}, {packed})"
        areas = "0"
        for made in self.codes:
            if isinstance(made, ProductCode):
                areas = f"more({made.areas()}, {areas})"
            elif any(made.areas(way) != "0" for way in ways(made)):
                areas = f"more({''.join(_by_way(ways(made), _area(made)))}, {areas})"
        names = [f"slot{i}" for i in range(len(sizes))]
        lines = [
            "/* Scratch, in floats: what all threads share, then an area for each. */",
            "struct Shared {",
            f"int64_t {', '.join([*names, 'packed', 'end'])};",
            "};",
            "",
            "KF_INLINE Shared shared(int64_t B) {",
            "Shared s;",
            "int64_t at = 0;",
        ]
        for i, name in enumerate(names):
            lines.append(f"s.{name} = at, at += up({sizes[i]}, 16);")
        if packed != "0":
            packed = f"{{% if pack == 'shared' %}}{packed}{{% else %}}0{{% endif %}}"
        lines += [
            f"s.packed = at, at += up({packed}, 16);",
            "s.end = at;",
            "(void)B;",
            "return s;",
            "}",
            "",
            f"constexpr int64_t kArea = up({areas}, 16);",
        ]
        return lines

    def _entry(self) -> list[str]:
        axis = "axes[0]" if self.graph.dynamic else "1"
        lines = [
            'extern "C" int64_t kforge_scratch_bytes(const int64_t *axes, int32_t threads) {',
            "(void)axes;",
            f"return 4 * (shared({axis}).end + threads * kArea);",
            "}",
            "",
            'extern "C" void kforge_kernel(const kf_launch *launch) {',
            "Call c;",
            "c.launch = launch;",
            "c.thread = launch->thread, c.threads = launch->threads;",
            f"c.B = {'launch->axes[0]' if self.graph.dynamic else '1'};",
        ]
        lines += [f"c.{name} = {value};" for name, value in self._variables().items()]
        outputs = " + ".join(_floats(self.graph.shapes[name]) for name in self.graph.outputs)
        lines += ["const int64_t B = c.B;", "(void)B;", f"c.far = 4 * ({outputs}) > {_FAR};"]
        lines += ["float *const scratch = static_cast<float *>(launch->scratch);", "const Shared s = shared(c.B);"]
        lines += [f"c.{pointer} = scratch + s.slot{slot};" for pointer, slot in self.slots.items()]
        lines += ["c.packed = scratch + s.packed, c.area = scratch + s.end + c.thread * kArea;"]
        for number, waits in enumerate(_waits(self.plan, self.slots)):
            lines += ["kf_barrier(launch);"] * waits + [f"region_{number}(c);"]
        return [*lines, "}"]


def _planned(graph: Graph) -> tuple[Plan, list[NestCode | ProductCode]]:
    """Plan and code of a graph, with as much put into memory as it takes."""
    graph, in_memory = simplified(graph), frozenset[str]()
    while True:
        made = plan(graph, in_memory)
        try:
            return made, [_coded(made, region) for region in made.regions]
        except Opaque as opaque:
            assert opaque.value not in made.views, (
                opaque.value
            )  # what lies in memory is dense, or a part that nothing reshapes
            in_memory |= {opaque.value}


def _coded(made: Plan, region: Region) -> NestCode | ProductCode:
    if isinstance(region, Product):
        return ProductCode(made, region)
    assert isinstance(region, Nest)
    return NestCode(made, region)


def _slots(made: Plan) -> dict[str, int]:
    """Buffers of our own to pieces of scratch: of equal size, when the last reader of one is through before another is
    written."""
    last: dict[str, int] = {}
    first: dict[str, int] = {}
    for number, region in enumerate(made.regions):
        for pointer in (*region.reads, *(store.view.pointer for store in region.stores)):
            last[pointer] = number
            first.setdefault(pointer, number)
    free: dict[str, list[tuple[int, int]]] = {}  # size: (free after this region, slot)
    slots: dict[str, int] = {}
    count = 0
    for pointer in sorted((p for p in made.scratch if p in first), key=lambda p: first[p]):
        size = _floats(made.scratch[pointer])
        fitting = [item for item in free.get(size, []) if item[0] < first[pointer]]
        if fitting:
            free[size].remove(fitting[0])
            slot = fitting[0][1]
        else:
            slot, count = count, count + 1
        slots[pointer] = slot
        free.setdefault(size, []).append((last[pointer], slot))
    return slots


def _waits(made: Plan, slots: Mapping[str, int]) -> list[bool]:
    """Whether all threads must meet before each region: when it reads what others since the last time wrote, writes
    what they used, or packs where they packed."""
    waits = []
    written: set[str | int] = set()
    used: set[str | int] = set()
    packed = False
    for region in made.regions:
        reads = {slots.get(p, p) for p in region.reads}
        writes = {slots.get(s.view.pointer, s.view.pointer) for s in region.stores}
        product = isinstance(region, Product)
        waits.append(bool(reads & written or writes & used or (product and packed)))
        if waits[-1]:
            written, used, packed = set(), set(), False
        written |= writes
        used |= reads
        packed |= product
    return waits


def _floats(shape: Shape) -> str:
    parts = [f"{extent}LL" for extent in shape if extent != AXIS]
    return " * ".join(["B"] * (AXIS in shape) + parts) or "1"


def _first_way(made: NestCode) -> tuple[Way, ...]:
    return made.ways[:1]


def _every_way(made: NestCode) -> tuple[Way, ...]:
    return made.ways


def _by_way(ways: tuple[Way, ...], text: Callable[[Way], list[str]]) -> list[str]:
    """Text for each way, the first one wherever the one that is chosen is not among them."""
    first, *others = ways
    lines: list[str] = []
    for way in others:
        lines += [f"{{% {'elif' if lines else 'if'} way == '{way}' %}}", *text(way)]
    return [*lines, "{% else %}", *text(first), "{% endif %}"] if others else text(first)


def _area(made: NestCode) -> Callable[[Way], list[str]]:
    return lambda way: [made.areas(way)]


def _locals(body: Iterable[str]) -> list[str]:
    """The fields of the call that a function uses as variables of its own, which no store can change."""
    used = dict.fromkeys(name for line in body for name in _VARIABLE.findall(line))
    lines = [f"const auto {name} = c.{name};" for name in sorted(used)]
    if any(re.search(r"\bB\b", line) for line in body):
        lines.append("const int64_t B = c.B;")
    if any(re.search(r"\bfar\b", line) for line in body):
        lines.append("const bool far = c.far;")
    return ["(void)c;", *lines]


def _header(operator: str, summary: str, params: Sequence[_Param], constraints: Sequence[str]) -> str:
    lines = [
        "{#- kforge",
        f"operator = {json.dumps(operator)}",
        "version = 1",
        'numerics = "relaxed"',
        f"summary = {json.dumps(summary)}",
        f"constraints = {json.dumps(list(constraints))}",
    ]
    for param in params:
        lines += [
            f"[params.{param.name}]",
            f"choices = {json.dumps(list(param.choices))}",
            f"default = {json.dumps(param.default)}",
        ]
    return "\n".join([*lines, "-#}"])


def _sizes(depth: int) -> list[str]:
    return [
        "constexpr int64_t kMr = {{ m_tile }}, kNr = {{ n_vectors }} * W;",
        f"constexpr int64_t kBlock = {{{{ k_block }}}} < {depth} ? {{{{ k_block }}}} : {depth};",
        "constexpr int64_t kRows = up({{ m_block }}, kMr), kColumns = up({{ n_block }}, kNr);",
        "constexpr int64_t kOwn = kBlock * {% if order == 'tiles' %}kColumns{% else %}kNr{% endif %};",
    ]


def _each_line(lines: Iterable[str]) -> list[str]:
    return [line for text in lines for line in text.split("\n")]


_BLANKS = re.compile(r"\n{3,}")
_COMPILER = _Param("compiler", ("gcc", "clang"), "gcc", "'gcc'")

_PUT = """\
KF_INLINE void put(float *to, F x, bool far) {
{% if stream == 'large' %}
if (far) V::stream(to, x);
else V::store(to, x);
{% else %}
(void)far;
V::store(to, x);
{% endif %}
}"""

# Sums of r rows and kNr columns over a block of k, in registers: [r][kNr], starting at what stands there or at nothing.
_MICRO = """\
{% set heights = [1, 2, 4, 8, m_tile] | select('le', m_tile) | unique | sort | list %}
{% for r in heights %}
static __attribute__((noinline)) void micro_{{ r }}(const float *a, const float *b, int64_t depth, float *sums,
bool go_on) {
{% for i in range(r) %}
{% for q in range(n_vectors) %}
F s{{ i }}_{{ q }} = go_on ? V::load(sums + {{ i }} * kNr + {{ q }} * W) : V::splat(0.0f);
{% endfor %}
{% endfor %}
for (int64_t k = 0; k < depth; ++k, a += kMr, b += kNr) {
{% for q in range(n_vectors) %}
const F b{{ q }} = V::in_register(V::load(b + {{ q }} * W));
{% endfor %}
{% for i in range(r) %}
const F x{{ i }} = V::splat(a[{{ i }}]);
{% for q in range(n_vectors) %}
s{{ i }}_{{ q }} = V::madd(x{{ i }}, b{{ q }}, s{{ i }}_{{ q }});
{% endfor %}
{% endfor %}
}
{% for i in range(r) %}
{% for q in range(n_vectors) %}
V::store(sums + {{ i }} * kNr + {{ q }} * W, s{{ i }}_{{ q }});
{% endfor %}
{% endfor %}
}

{% endfor %}
static inline void micro(int64_t count, const float *a, const float *b, int64_t depth, float *sums, bool go_on) {
{% for r in heights %}
if (count <= {{ r }}) return micro_{{ r }}(a, b, depth, sums, go_on);
{% endfor %}
}"""
