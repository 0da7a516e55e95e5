"""What a Module looks like in print."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

from nnx_spec import OURS, SHOULD, clause
from nnx_spec.chapters.functional.making import net, param
from nnx_spec.chapters.modules.models import counted, layers


def plain(text):
    """Takes the escape sequences for colours out of a text."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def words(text):
    """Lists names and numbers in a text, the latter with separators of thousands."""
    return re.findall(r"[A-Za-z_]\w*|\d[\d,.]*\d|\d", plain(text))


def part(text, name):
    """Returns what follows a name in a text, up to the end of the line that closes it."""
    start = re.search(rf"\b{name}=", text).end()
    depth = 0
    for n in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[n], 0)
        if depth == 0 and text[n] == ")":
            return text[start:n] + text[n:].partition("\n")[0]
    raise AssertionError(f"{name} is not closed in {text}")


@clause(
    "MOD-020", SHOULD, OURS, source="a reader of a printed model wants shapes, sizes and settings"
)
class TestRepr:
    """`repr` of a Module shows its nested structure, with what each part holds and its size.

    It names classes and attributes, and gives shape and dtype of arrays, the values of static
    attributes, and for Variables, alone and summed up in each Module by class, the number of
    elements and of bytes. Arrays of many elements are not written out.
    """

    def test_structure(self, nnx):
        model = net(nnx, inner=layers(nnx).Linear(2, 3), name="left", table=counted((2,)))
        text = plain(repr(model))
        assert text.startswith("Net(")
        assert {"inner", "Linear", "kernel", "bias", "Param", "name", "table"} <= {*words(text)}
        inner = part(text, "inner")
        assert inner.startswith("Linear(")
        assert {"kernel", "bias", "din", "dout"} <= {*words(inner)}
        assert not {"name", "table"} & {*words(inner)}
        assert "'left'" in text
        assert re.search(r"\bdin=2\b", inner)

    @pytest.mark.parametrize("dtype", ["float32", "int32", "bfloat16"])
    def test_shapes_and_dtypes(self, nnx, dtype):
        model = net(nnx, w=nnx.Param(np.zeros((30, 40), jnp.dtype(dtype))))
        text = plain(repr(model))
        assert "(30, 40)" in part(text, "w")
        assert dtype in part(text, "w")

    def test_sizes(self, nnx):
        model = net(nnx, a=nnx.Param(counted((30, 50))), b=net(nnx, c=nnx.Param(counted((7,)))))
        model.mean = nnx.BatchStat(np.zeros((11,), "float32"))
        text = plain(repr(model))
        assert {"1,500", "6.0"} <= {*words(part(text, "a"))}
        assert {"7", "28"} <= {*words(part(text, "c"))}
        assert {"11", "44"} <= {*words(part(text, "mean"))}
        assert {"Param", "7", "28"} <= {*words(part(text, "b").splitlines()[0])}
        total = text.splitlines()[0]
        assert re.search(r"Param: 1,507 \(6\.0 KB\)", total)
        assert re.search(r"BatchStat: 11 \(44 B\)", total)

    def test_bytes_by_dtype(self, nnx):
        model = net(nnx, a=nnx.Param(np.zeros(10, "int8")), b=nnx.Param(np.zeros(10, "float32")))
        assert re.search(r"Param: 20 \(50 B\)", plain(repr(model)).splitlines()[0])

    def test_shared_variables_count_once(self, nnx):
        model = net(nnx, a=param(nnx, [1, 2, 3]))
        model.b = model.a
        assert re.search(r"Param: 3 \(12 B\)", plain(repr(model)).splitlines()[0])

    def test_containers(self, nnx):
        model = net(
            nnx, blocks=nnx.List([layers(nnx).Linear(1, 1)]), table=nnx.Dict(k=param(nnx, 1))
        )
        found = {*words(repr(model))}
        assert {"blocks", "List", "Linear", "kernel", "table", "Dict", "k"} <= found

    @pytest.mark.parametrize("make", ["Param", "array", "NumPy array"])
    def test_large_values(self, nnx, make):
        values = np.arange(200_000, dtype="float32")
        wrap = {"Param": nnx.Param, "array": lambda x: counted(x.shape), "NumPy array": lambda x: x}
        text = plain(repr(net(nnx, w=wrap[make](values))))
        assert len(text) < 2_000
        assert "200000" in text
        assert "float32" in text

    def test_cycles(self, nnx):
        model = net(nnx, n=1)
        model.me = model
        assert "Net" in repr(model)
        assert len(repr(model)) < 2_000
