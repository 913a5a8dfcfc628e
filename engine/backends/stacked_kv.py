"""Keys and values of one sequence for all layers in one tensor, so that a step gets its views by four calls in all."""

from collections.abc import Sequence
from typing import Final

from torch import Tensor

# Grown by a quarter when full: twice as much would be twice the memory where memory comes in huge pages, and a copy is
# a tenth of what it took to compute the quarter.
_GRAIN: Final = 256


def rounded_up(count: int, grain: int) -> int:
    """The next multiple of `grain`."""
    return -(-count // grain) * grain


def capacity_for(length: int) -> int:
    """For how many tokens to make room when there are so many."""
    return rounded_up(length + length // 4, _GRAIN)


class StackedKV:
    """[layers, 2, kv heads, capacity, dim], made when the first tokens come."""

    def __init__(self, num_layers: int, num_kv_heads: int, dim: int, like: Tensor) -> None:
        """like: any tensor of the dtype and on the device that the KV is to have."""
        self._shape = num_layers, num_kv_heads, dim
        self._like = like
        self._data: Tensor | None = None
        self._length = 0

    @property
    def length(self) -> int:
        """Number of tokens whose keys and values are in."""
        return self._length

    def crop(self, length: int) -> None:
        """Forget what lies beyond `length`; the memory stays for what comes next."""
        self._length = min(self._length, length)

    def copy(self, length: int) -> "StackedKV":
        """Another KV with the first `length` tokens of this one."""
        twin = StackedKV(*self._shape, self._like)
        length = min(self._length, length)
        if self._data is not None and length:
            twin._data = twin._allocated(length)
            twin._data[:, :, :, :length] = self._data[:, :, :, :length]
            twin._length = length
        return twin

    def views(self, count: int, grain: int = 1) -> tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]:
        """By layer: where the keys and values of `count` new tokens go, all keys, and all values, new ones included.

        [2, kv heads, count, dim], and twice [1, kv heads, length + count, dim], up to the next multiple of `grain`, a
        divisor of 256; what lies behind the end is finite. `length` stays until `advance`.
        """
        start, end = self._length, self._length + count
        data = self._with_room(end)
        shown = rounded_up(end, grain)
        return (
            data[:, :, :, start:end].unbind(0),
            data[:, 0, None, :, :shown].unbind(0),
            data[:, 1, None, :, :shown].unbind(0),
        )

    def advance(self, count: int) -> None:
        """The last `count` tokens are in every layer."""
        self._length += count

    def _with_room(self, length: int) -> Tensor:
        if self._data is None:
            self._data = self._allocated(length)
        elif self._data.shape[3] < length:
            larger = self._allocated(length)
            larger[:, :, :, : self._length] = self._data[:, :, :, : self._length]
            self._data = larger
        return self._data

    def _allocated(self, length: int) -> Tensor:
        layers, heads, dim = self._shape
        return self._like.new_zeros(layers, 2, heads, capacity_for(length), dim)
