"""The weight layout ``panel``, version 1 (docs/architecture.md): packing and unpacking.

The byte layout is described once, as strided views of a packed buffer: packing assigns to them, unpacking reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kforge.core.dtypes import WeightFormat
from kforge.core.layout import Layout
from kforge.operators.random_weights import random
from kforge.operators.weights import QuantizedWeight, concat, from_gguf, require_int8_columns

if TYPE_CHECKING:
    import numpy as np

__all__ = ["QuantizedWeight", "concat", "from_gguf", "pack", "packed_bytes", "panel_layout", "random", "source_rows",
           "unpack"]

TILE = 16
GROUP = 32
SUPER = 256
_CHUNK_WEIGHTS = 1 << 22  # packed at once, so that the intermediate arrays stay in cache


def panel_layout(rows: int, gate_up: bool = False) -> Layout:
    """``panel`` version 1, panels of 16, 32 or 64 rows; ``gate_up`` alternates 16 gate and 16 up rows (rows >= 32)."""
    return Layout.of("panel", 1, rows=rows, gate_up=int(gate_up))


def _panel_rows(layout: Layout) -> int:
    rows = int(layout["rows"])
    if layout.family != "panel" or layout.version != 1 or rows not in (16, 32, 64):
        raise ValueError(f"cannot pack weights as {layout.key}: known is panel.v1 with rows 16, 32 or 64")
    if layout["gate_up"] and rows < 32:
        raise ValueError("gate_up needs panels of at least 32 rows: 16 gate rows and 16 up rows")
    return rows


def source_rows(n: int, layout: Layout) -> np.ndarray:
    """int64 [packed rows]: the weight row that each packed row holds, -1 for padding."""
    import numpy as np

    rows = _panel_rows(layout)
    if layout["gate_up"]:
        if n % 2:
            raise ValueError(f"gate_up needs as many gate rows as up rows, got {n} rows")
        half = n // 2
        gate = np.arange(-(-half // TILE) * TILE).reshape(-1, 1, TILE)
        pairs = [np.where(gate < half, gate, -1), np.where(gate < half, gate + half, -1)]
        source = np.concatenate(pairs, axis=1).ravel()
    else:
        source = np.arange(n)
    return np.concatenate([source, np.full(-len(source) % rows, -1)])


@dataclass(frozen=True)
class _Sizes:
    """Bytes and counts of the layout for one format, K and panel height."""

    format: WeightFormat
    rows: int
    groups: int
    supers: int  # superblocks per row; 1 (of all groups) for the other formats
    vectors: int  # per tile: rows of 16 words
    word: int  # bytes of a word: 4, or 2 for f16
    scale_bytes: int
    header_bytes: int

    @classmethod
    def of(cls, format: WeightFormat, k: int, rows: int) -> _Sizes:
        traits = format.traits
        if traits.superblock and k % SUPER:
            raise ValueError(f"{format} needs K to be a multiple of {SUPER}, got {k}")
        if traits.row_scale:
            require_int8_columns(k)
        word = 2 if format is WeightFormat.F16 else 4
        scale = (1 if traits.e8m0 else 4 if traits.has_min and not traits.superblock else 2) * rows
        scale *= format.quantized and not traits.row_scale
        header = (4 if traits.has_min else 2) * rows if traits.superblock else 4 * rows if traits.row_scale else 0
        return cls(format, rows, -(-k // GROUP), k // SUPER if traits.superblock else 1,
                   GROUP * traits.bits // 8 // word, word, scale, header)

    @property
    def tile_bytes(self) -> int:
        return self.vectors * TILE * self.word

    @property
    def group_bytes(self) -> int:
        return self.scale_bytes + self.rows // TILE * self.tile_bytes

    @property
    def super_bytes(self) -> int:
        return self.header_bytes + self.groups // self.supers * self.group_bytes

    @property
    def panel_bytes(self) -> int:
        return self.supers * self.super_bytes


class _Views:
    """Typed, strided views of the sections of whole panels: [panel, super, ...]."""

    def __init__(self, data: np.ndarray, sizes: _Sizes) -> None:
        import numpy as np

        self._data, self._sizes = data, sizes
        self._panels = data.size // sizes.panel_bytes
        word = np.uint16 if sizes.word == 2 else np.uint32
        tiles = sizes.rows // TILE
        # [panel, super, group, tile, vector, row]
        self.words = self._view(word, sizes.header_bytes + sizes.scale_bytes, (tiles, sizes.vectors, TILE),
                                (sizes.tile_bytes, TILE * sizes.word, sizes.word))

    def header(self, index: int) -> np.ndarray:
        """[panel, super, row]: float16, d (0) or dmin (1) of a K format; float32, d of a format with row scales."""
        import numpy as np

        sizes = self._sizes
        item = np.dtype(np.float32 if sizes.format.traits.row_scale else np.float16)
        offset = index * item.itemsize * sizes.rows
        return np.ndarray((self._panels, sizes.supers, sizes.rows), item, self._data, offset,
                          (sizes.panel_bytes, sizes.super_bytes, item.itemsize))

    def scales(self, dtype: type, index: int) -> np.ndarray:
        """[panel, super, group, row]: the ``index``-th array of scales of each group."""
        import numpy as np

        item = np.dtype(dtype).itemsize
        offset = self._sizes.header_bytes + index * item * self._sizes.rows
        return self._view(dtype, offset, (self._sizes.rows,), (item,))

    def _view(self, dtype: type, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
        import numpy as np

        sizes = self._sizes
        return np.ndarray((self._panels, sizes.supers, sizes.groups // sizes.supers, *shape), dtype, self._data, offset,
                          (sizes.panel_bytes, sizes.super_bytes, sizes.group_bytes, *strides))


def packed_bytes(format: WeightFormat, n: int, k: int, layout: Layout) -> int:
    """Size of the packed weight."""
    rows = _panel_rows(layout)
    packed = -(-(n // 2) // TILE) * TILE * 2 if layout["gate_up"] else n
    return -(-packed // rows) * _Sizes.of(format, k, rows).panel_bytes


def pack(weight: QuantizedWeight, layout: Layout) -> np.ndarray:
    """uint8 [packed_bytes]: the weight as kernels read it. 100 million weights take about a second."""
    import numpy as np

    sizes = _Sizes.of(weight.format, weight.k, _panel_rows(layout))
    source = source_rows(weight.n, layout)
    out = np.zeros(len(source) // sizes.rows * sizes.panel_bytes, np.uint8)
    chunk = max(1, _CHUNK_WEIGHTS // (sizes.rows * max(weight.k, 1)))
    for first in range(0, len(source) // sizes.rows, chunk):
        taken = source[first * sizes.rows:(first + chunk) * sizes.rows]
        part = _take(weight, taken)
        section = out[first * sizes.panel_bytes:(first + chunk) * sizes.panel_bytes]
        _pack_panels(part, _Views(section, sizes), sizes)
    return out


def _take(weight: QuantizedWeight, source: np.ndarray) -> QuantizedWeight:
    """The given rows, zeros for -1."""
    start = int(source[0])
    if (source == range(start, start + len(source))).all() and start >= 0:
        return weight.rows(start, start + len(source))
    parts = []
    for array in weight.arrays():
        rows = array[source]
        rows[source < 0] = 0
        parts.append(rows)
    return QuantizedWeight(weight.format, *parts)


def _by_panel(per_row: np.ndarray, sizes: _Sizes) -> np.ndarray:
    """[rows, columns] as [panel, super, columns of a super, row]."""
    return per_row.reshape(-1, sizes.rows, sizes.supers, per_row.shape[1] // sizes.supers).transpose(0, 2, 3, 1)


def _by_row(view: np.ndarray) -> np.ndarray:
    """The inverse of ``_by_panel``: [panel, super, columns, row] as [rows, columns]."""
    import numpy as np

    return np.ascontiguousarray(view.transpose(0, 3, 1, 2)).reshape(view.shape[0] * view.shape[3], -1)


def _pack_panels(weight: QuantizedWeight, views: _Views, sizes: _Sizes) -> None:
    import numpy as np

    shape = (-1, sizes.rows // TILE, TILE, sizes.supers, sizes.groups // sizes.supers, sizes.vectors)
    views.words[...] = _words(weight).reshape(shape).transpose(0, 3, 4, 1, 5, 2)
    match weight.format:
        case WeightFormat.Q8_0 | WeightFormat.Q4_0 | WeightFormat.Q4_1:
            views.scales(np.float16, 0)[...] = _by_panel(weight.d, sizes)
            if weight.format is WeightFormat.Q4_1:
                views.scales(np.float16, 1)[...] = _by_panel(weight.m, sizes)
        case WeightFormat.Q4_K | WeightFormat.Q5_K:
            views.header(0)[...] = _by_panel(weight.d, sizes)[:, :, 0]
            views.header(1)[...] = _by_panel(weight.m, sizes)[:, :, 0]
            views.scales(np.uint8, 0)[...] = _by_panel(weight.sc, sizes)
            views.scales(np.uint8, 1)[...] = _by_panel(weight.mn, sizes)
        case WeightFormat.Q6_K:
            views.header(0)[...] = _by_panel(weight.d, sizes)[:, :, 0]
            sc = _by_panel(weight.sc, sizes)
            views.scales(np.int8, 0)[...] = sc[:, :, 0::2]
            views.scales(np.int8, 1)[...] = sc[:, :, 1::2]
        case WeightFormat.MXFP4:
            views.scales(np.uint8, 0)[...] = _by_panel(weight.d, sizes)
        case WeightFormat.INT8_CHANNEL:
            views.header(0)[...] = _by_panel(weight.d, sizes)[:, :, 0]


def _words(weight: QuantizedWeight) -> np.ndarray:
    """The values of each row as the layout's words: [rows, groups, vectors].

    Integer formats: word r of vector j holds the bytes 4r..4r+3 of the layout's description; whole words are combined,
    so that no operation works on single bytes.
    """
    import numpy as np

    n, k = weight.values.shape
    values, format = weight.values, weight.format
    if k % GROUP:
        values = np.pad(values, ((0, 0), (0, -k % GROUP)))
    values = np.ascontiguousarray(values)
    match format:
        case WeightFormat.F16:
            return values.view(np.uint16).reshape(n, -1, GROUP)
        case WeightFormat.F32:
            return values.view(np.uint32).reshape(n, -1, GROUP)
        case WeightFormat.BF16:
            return values.view(np.uint32).reshape(n, -1, GROUP // 2)
    u = values.view(np.uint32).reshape(-1, 8)  # word 4 * half + j of each group of 32
    bits = format.traits.bits
    if bits == 8:
        return u.reshape(n, -1, 8)
    words = np.zeros((len(u), bits), np.uint32)
    for j in range(4):
        words[:, j] = (u[:, j] & 0x0F0F0F0F) | (u[:, 4 + j] & 0x0F0F0F0F) << 4
    for index in range(8):
        half, j = divmod(index, 4)
        if bits == 5:
            words[:, 4] |= (u[:, index] >> 4 & 0x01010101) << index
        elif bits == 6:
            words[:, 4 + half] |= (u[:, index] >> 4 & 0x03030303) << 2 * j
    return words.reshape(n, -1, bits)


def _values(words: np.ndarray, format: WeightFormat) -> np.ndarray:
    """The inverse of ``_words``: [rows, K padded to 32]."""
    import numpy as np

    n, bits = words.shape[0], format.traits.bits
    floats = {WeightFormat.F32: np.float32, WeightFormat.F16: np.float16, WeightFormat.BF16: np.uint16}
    if bits >= 8:
        return words.reshape(n, -1).view(floats.get(format, np.uint8))
    flat = words.reshape(-1, bits)
    u = np.zeros((len(flat), 8), np.uint32)
    for index in range(8):
        half, j = divmod(index, 4)
        u[:, index] = flat[:, j] >> 4 * half & 0x0F0F0F0F
        if bits == 5:
            u[:, index] |= (flat[:, 4] >> index & 0x01010101) << 4
        elif bits == 6:
            u[:, index] |= (flat[:, 4 + half] >> 2 * j & 0x03030303) << 4
    return u.view(np.uint8).reshape(n, -1)


def unpack(data: np.ndarray, format: WeightFormat, n: int, k: int, layout: Layout) -> QuantizedWeight:
    """The weight [N, K] that ``pack`` was given, to the bit."""
    import numpy as np

    rows = _panel_rows(layout)
    sizes = _Sizes.of(format, k, rows)
    if data.size != packed_bytes(format, n, k, layout):
        raise ValueError(f"{format}[{n}, {k}] as {layout.key} has {packed_bytes(format, n, k, layout)} bytes, "
                         f"got {data.size}")
    chunk = max(1, _CHUNK_WEIGHTS // (rows * max(k, 1))) * sizes.panel_bytes
    parts = [_unpack_panels(_Views(data[first:first + chunk], sizes), sizes, k) for first in range(0, data.size, chunk)]
    whole = parts[0] if len(parts) == 1 else concat(parts)
    if not layout["gate_up"]:
        return whole.rows(0, n)
    source = source_rows(n, layout)
    return whole.take(np.argsort(np.where(source < 0, len(source), source), kind="stable")[:n])


def _unpack_panels(views: _Views, sizes: _Sizes, k: int) -> QuantizedWeight:
    import numpy as np

    words = np.ascontiguousarray(views.words.transpose(0, 3, 5, 1, 2, 4))
    rows = words.shape[0] * sizes.rows
    values = _values(words.reshape(rows, sizes.groups, sizes.vectors), sizes.format)[:, :k]
    halves, bytes_ = np.zeros((rows, 0), np.float16), np.zeros((rows, 0), np.uint8)
    d, m, sc, mn = halves, halves, bytes_, bytes_
    match sizes.format:
        case WeightFormat.Q8_0 | WeightFormat.Q4_0 | WeightFormat.Q4_1:
            d = _by_row(views.scales(np.float16, 0))
            if sizes.format is WeightFormat.Q4_1:
                m = _by_row(views.scales(np.float16, 1))
        case WeightFormat.Q4_K | WeightFormat.Q5_K:
            d, m = (_by_row(views.header(index)[:, :, None]) for index in (0, 1))
            sc, mn = (_by_row(views.scales(np.uint8, index)) for index in (0, 1))
        case WeightFormat.Q6_K:
            d = _by_row(views.header(0)[:, :, None])
            sc = np.stack([_by_row(views.scales(np.int8, index)) for index in (0, 1)], axis=2).reshape(rows, -1)
        case WeightFormat.MXFP4:
            d = _by_row(views.scales(np.uint8, 0))
        case WeightFormat.INT8_CHANNEL:
            d = _by_row(views.header(0)[:, :, None])
    return QuantizedWeight(sizes.format, values, d, m, sc, mn)
