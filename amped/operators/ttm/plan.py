"""Plans for the multiplication of a sparse tensor by a matrix, before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from ...backend.device import Device
from ...backend.ops.ttm import TTM, ProductForm, TtmKernel
from ...errors import InputError
from ...options import Options
from ..memory import SLOT_BYTES, SLOTS, SMALLEST_SLOT
from ..placement import ALREADY_LOADED, INDEX_BYTES, Loading

FINDING = 18  # bytes per nonzero, in addition to its indices, while the starts of fibres are computed
PIECE_BYTES = 1 << 30  # of a piece of the result
LIBRARIES = 60 << 20  # host memory of the kernels that CuPy itself loads


class TtmSetting(NamedTuple):
    """Parameters that the plans of all ranks share."""

    mode: int  # that is multiplied
    rank: int  # columns of the matrix
    sparse: int  # modes that have indices
    width: int  # numbers of a value
    length: int  # of the mode
    total: int  # nonzeros of all ranks
    options: Options
    device: Device
    memory: int  # bytes of device memory to use

    @property
    def stride(self) -> int:
        """Number of columns of the matrix in memory, including padding."""
        return self.device.stride(self.rank, self.options.dtype.itemsize)

    @property
    def each(self) -> int:
        """Bytes of a nonzero: a 32-bit index for each sparse mode, and a value."""
        return INDEX_BYTES * self.sparse + self.width * self.options.dtype.itemsize

    def form(self, nnz: int) -> ProductForm:
        """Return the form of a product of `nnz` nonzeros, as kernels take it."""
        return ProductForm(self.length, self.stride, self.options.dtype, nnz, self.width)


@dataclass(frozen=True)
class TtmPlan:
    """The plan of one rank."""

    setting: TtmSetting
    kernel: TtmKernel
    nnz: int  # of this rank
    fibres: int  # of this rank, at most
    piece: int  # the most nonzeros of a shard
    resident: int  # shards, the first ones, that stay on the device; others are streamed
    whole: bool  # whether the whole result stays on the device, or is computed in pieces
    device_bytes: dict[str, int]  # by use; their sum is the peak
    host_bytes: int
    on_device: bool = False  # whether nonzeros are sorted on the device
    counted: ClassVar[str] = "nonzeros"

    @property
    def form(self) -> ProductForm:
        """See `ProductForm`."""
        return self.setting.form(self.nnz)

    @property
    def pieces(self) -> int:
        """Number of shards."""
        return -(-self.nnz // self.piece) if self.nnz else 0

    @property
    def planned_bytes(self) -> dict[str, int]:
        """Bytes of device and host memory by use."""
        return self.device_bytes | {"host": self.host_bytes}

    @property
    def read_bytes(self) -> int:
        """Bytes of matrix rows and streamed nonzeros that a product reads."""
        streamed = max(0, self.nnz - self.resident * self.piece)
        return self.nnz * self.form.stride * self.form.dtype.itemsize + streamed * self.setting.each


def most_fibres(nnz: int, lengths: tuple[int, ...]) -> int:
    """Return the largest possible number of fibres of `nnz` nonzeros, given the lengths of the other sparse modes."""
    result = 1
    for length in lengths:
        result = min(nnz, result * length)
    return min(nnz, result)


def result_bytes(setting: TtmSetting, fibres: int) -> int:
    """Return the host memory of the result for a number of fibres."""
    return fibres * (INDEX_BYTES * (setting.sparse - 1) + setting.width * setting.rank * setting.options.dtype.itemsize)


def ttm_kernel(options: Options, device: Device) -> TtmKernel:
    """Return the kernel selected by the options; raise `InputError` if the device does not have it."""
    if options.gather != "full":
        raise InputError(f"gather {options.gather!r}: a product (ttm) reads the matrix as it is")
    kernels = TTM.providers(device)
    result = next((k for k in kernels if options.kernel in ("auto", k.name)), None)
    if result is None:
        raise InputError(
            f"kernel {options.kernel!r}: of products, {device.name} has auto, {', '.join(k.name for k in kernels)}"
        )
    return result


def make_ttm_plan(setting: TtmSetting, nnz: int, fibres: int, loading: Loading = ALREADY_LOADED) -> TtmPlan:
    """Return the plan of a rank with these numbers of nonzeros and fibres.

    Raises
    ------
    InputError
        If the memory is too small, or the device has no such kernel.
    """
    kernel = ttm_kernel(setting.options, setting.device)
    need = _Need(setting, kernel, nnz, fibres)
    plan = _resident(need) if setting.options.placement != "stream" else None
    if plan is None:
        if setting.options.placement == "resident":
            need.refuse(need.running(min(nnz, SMALLEST_SLOT), 0) + need.shards(nnz), "the resident nonzeros")
        plan = _streamed(need)
    return _with_loading(plan, loading)


class _Need:
    """Bytes of device memory for pieces of nonzeros."""

    def __init__(self, setting: TtmSetting, kernel: TtmKernel, nnz: int, fibres: int) -> None:
        self.setting, self.kernel, self.nnz, self.fibres = setting, kernel, nnz, fibres
        self.form = setting.form(nnz)
        self.matrix = setting.length * setting.stride * setting.options.dtype.itemsize
        self.row = self.form.row_bytes
        self.available = setting.memory - self.matrix - 2 * self.row

    def most(self) -> int:
        """Return the largest number of nonzeros of a piece."""
        return max(1, min(self.nnz, self.kernel.most_nonzeros))

    def shard(self, piece: int) -> int:
        """Bytes of the shard of a piece."""
        return self.kernel.bytes(self.form, piece, min(piece, self.fibres)).shard

    def shards(self, piece: int) -> int:
        """Bytes of all shards with `piece` nonzeros each."""
        whole, rest = divmod(self.nnz, piece) if self.nnz else (0, 0)
        return whole * self.shard(piece) + (self.shard(rest) if rest else 0)

    def out(self, piece: int) -> int:
        """Bytes of the result of a piece."""
        return min(piece, self.fibres) * self.row

    def making(self, piece: int) -> int:
        """Bytes while a piece's shard is built, including its columns if these are copied to the device."""
        columns = 0 if self.setting.device.on_host else self.setting.each + FINDING
        return self.kernel.bytes(self.form, piece, min(piece, self.fibres)).making + columns * piece

    def scratch(self, piece: int) -> int:
        """Bytes of scratch memory."""
        return self.kernel.bytes(self.form, piece, min(piece, self.fibres)).running

    def running(self, piece: int, out: int) -> int:
        """Bytes in addition to shards: the result, or a piece of it, with scratch memory; or memory to build shards."""
        return max(self.making(piece), (out or self.out(piece)) + self.scratch(piece))

    def refuse(self, needed: int, what: str) -> None:
        """Raise `InputError`: `needed` bytes in addition to the matrix are not available."""
        advice = "use more ranks or a lower rank"
        if self.setting.options.placement == "resident":
            advice += "; placement 'stream' takes nonzeros in turn"
        raise InputError(
            f"device memory: the matrix of {self.setting.length:,} rows, {what} and a piece of the result need "
            f"{self.matrix + 2 * self.row + needed:,} bytes, but {max(0, self.setting.memory):,} are available; "
            f"{advice}"
        )

    def plan(self, piece: int, resident: int, whole: bool) -> TtmPlan:
        """Return a plan of pieces, with the given number of resident ones."""
        pieces = -(-self.nnz // piece) if self.nnz else 0
        stored = self.shards(piece) if resident >= pieces else resident * self.shard(piece)
        out = self.fibres * self.row if whole else self.out(piece)
        used = {
            "matrix": self.matrix,
            "resident nonzeros": stored,
            "stream slots": SLOTS * self.shard(piece) if resident < pieces else 0,
            "result": out,
            "working memory": max(self.scratch(piece), self.making(piece) - out) + 2 * self.row,
        }
        return TtmPlan(self.setting, self.kernel, self.nnz, self.fibres, piece, min(resident, pieces), whole, used, 0)


def _resident(need: _Need) -> TtmPlan | None:
    """Return a plan of resident nonzeros with the whole result or a piece of it; None if neither fits."""
    piece = need.most()
    while True:
        shards, out = need.shards(piece), need.fibres * need.row
        if shards + need.running(piece, out) <= need.available:
            return need.plan(piece, need.nnz, whole=True)
        small = piece <= SMALLEST_SLOT or need.out(piece) <= PIECE_BYTES
        if small and shards + need.running(piece, 0) <= need.available:
            return need.plan(piece, need.nnz, whole=False)
        if piece <= SMALLEST_SLOT:
            return None
        piece = -(-piece // 2)


def _streamed(need: _Need) -> TtmPlan:
    """Return a plan with the largest pieces that fit; with placement 'auto' as many as fit are resident."""
    piece = max(1, min(need.most(), max(SMALLEST_SLOT, -(-need.nnz // (2 * SLOTS)))))
    while piece > SMALLEST_SLOT and (need.shard(piece) > SLOT_BYTES or need.out(piece) > PIECE_BYTES):
        piece = -(-piece // 2)
    while (used := SLOTS * need.shard(piece) + need.running(piece, 0)) > need.available:
        if piece <= SMALLEST_SLOT:
            need.refuse(used, "two shards of nonzeros")
        piece = -(-piece // 2)
    everything = SLOTS * need.shard(piece) + need.running(piece, need.fibres * need.row)
    whole = everything <= need.available
    resident = 0
    if need.setting.options.placement == "auto":
        resident = max(0, need.available - (everything if whole else used)) // max(1, need.shard(piece))
    return need.plan(piece, resident, whole)


def _with_loading(plan: TtmPlan, loading: Loading) -> TtmPlan:
    """Return a plan that includes the loading of nonzeros, which are sorted on the device if memory permits."""
    setting, used, passing = plan.setting, dict(plan.device_bytes), loading.device
    share, device, on_device = setting.each * plan.nnz, setting.device, False
    if passing is not None:
        most = plan.kernel.bytes(plan.form, plan.piece, min(plan.piece, plan.fibres))
        making = share + used["resident nonzeros"] + most.shard + most.making + FINDING * plan.piece
        peak = max(passing.tensor + passing.sorting * setting.total + share, share + FINDING * plan.nnz, making)
        on_device = peak <= setting.memory
        if on_device:
            used["working memory"] += max(0, peak - sum(used.values()))
    dealt = 0 if on_device else loading.dealing + loading.sorting + share
    streamed = max(0, plan.nnz - plan.resident * plan.piece) * setting.each
    on_host = streamed + INDEX_BYTES * (setting.sparse - 1) * plan.fibres
    if device.on_host:
        on_host += sum(used.values()) + share
    host = max(loading.reading, loading.tensor + max(dealt, on_host))
    host += device.host_bytes + device.code_bytes + (0 if device.on_host else LIBRARIES)
    return replace(plan, device_bytes=used, host_bytes=host, on_device=on_device)
