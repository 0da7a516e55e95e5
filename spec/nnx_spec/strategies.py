"""Hypothesis strategies that draw plans of object graphs and of filters."""

from __future__ import annotations

from hypothesis import strategies as st

from nnx_spec.filter_plans import (
    CALLABLES,
    EVERYTHING,
    NOTHING,
    AllPlan,
    AnyPlan,
    CallablePlan,
    EverythingPlan,
    FilterPlan,
    NothingPlan,
    NotPlan,
    PathPlan,
    TagPlan,
    TypePlan,
)
from nnx_spec.oracles import has_cycle, has_sharing
from nnx_spec.plans import (
    VARIABLE_KINDS,
    ArrayPlan,
    DictPlan,
    ListPlan,
    ModulePlan,
    NodePlan,
    Plan,
    PytreePlan,
    SharedPlan,
    StaticPlan,
    VariablePlan,
)

DTYPES = ("float32", "int32", "bfloat16", "bool", "uint32")
NAMES = ("a", "b", "kernel", "layer10", "layer9", "x")
NODES = (ModulePlan, PytreePlan, ListPlan, DictPlan)

arrays = st.builds(
    ArrayPlan,
    shape=st.sampled_from([(), (2,), (1, 3), (0,)]),
    dtype=st.sampled_from(DTYPES),
    start=st.integers(0, 9),
)
"""Plans of small arrays of several shapes, empty ones included, and dtypes."""

metadata = st.dictionaries(
    st.sampled_from(["tag", "note", "owner"]), st.sampled_from(["red", "blue", 1, None]), max_size=2
).map(lambda items: tuple(sorted(items.items())))
"""Metadata of a Variable: up to two keys with hashable values."""

variables = st.builds(
    VariablePlan,
    kind=st.sampled_from(VARIABLE_KINDS),
    value=arrays | st.dictionaries(st.sampled_from(["k", "l"]), arrays, min_size=1, max_size=2),
    metadata=metadata,
)
"""Plans of Variables of every kind, with array and dict values."""

statics = st.builds(StaticPlan, st.sampled_from([None, 0, 7, True, "text", (1, "two"), 2.5]))
"""Plans of static values."""


@st.composite
def graphs(
    draw: st.DrawFn, *, sharing: bool = False, cycles: bool = False, statics: bool = True
) -> NodePlan:
    """Draws a plan of an object graph with up to a dozen or so objects, its root a Module.

    Args:
      draw: supplied by hypothesis.
      sharing: whether an object may stand at several places.
      cycles: whether a reference to an ancestor may be among them; needs `sharing`.
      statics: whether Modules and Pytrees may have static attributes.
    """
    return _Drawing(draw, sharing, cycles, statics).node(ModulePlan, depth=0)


def trees() -> st.SearchStrategy[NodePlan]:
    """Draws plans without sharing: what tree mode takes."""
    return graphs()


def shared_graphs(*, cycles: bool = False) -> st.SearchStrategy[NodePlan]:
    """Draws plans in which some object stands at several places, or can be reached from itself."""
    return graphs(sharing=True, cycles=cycles).filter(has_cycle if cycles else has_sharing)


class _Drawing:
    """One plan in the making; keeps count of the objects, which later ones may refer to."""

    def __init__(self, draw: st.DrawFn, sharing: bool, cycles: bool, statics: bool) -> None:
        self.draw = draw
        self.sharing = sharing
        self.cycles = cycles
        self.statics = statics
        self.count = 0
        self.open: list[int] = []

    def node(self, kind: type[NodePlan], depth: int) -> NodePlan:
        self.open.append(self.count)
        self.count += 1
        low, high = (0, 3) if depth else (2, 5)
        unique = st.lists(st.sampled_from(NAMES), unique=True, min_size=low, max_size=high)
        names = self.draw(unique)
        keys = range(len(names)) if kind is ListPlan else names
        attributes = kind in (ModulePlan, PytreePlan)
        children = tuple((key, self.child(depth + 1, attributes)) for key in keys)
        self.open.pop()
        return kind(children)

    def child(self, depth: int, attribute: bool) -> Plan:
        targets = [n for n in range(self.count) if self.cycles or n not in self.open]
        choices = ["variable", "variable", "array"]
        choices += ["static"] * (attribute and self.statics)
        choices += ["node"] * 2 * (depth < 3 and self.count < 12)
        choices += ["shared"] * 2 * (self.sharing and bool(targets))
        match self.draw(st.sampled_from(choices)):
            case "variable":
                self.count += 1
                return self.draw(variables)
            case "array":
                return self.draw(arrays)
            case "static":
                return self.draw(statics)
            case "shared":
                return SharedPlan(self.draw(st.sampled_from(targets)))
            case _:
                return self.node(self.draw(st.sampled_from(NODES)), depth)


def filters(*, everything: bool = True) -> st.SearchStrategy[FilterPlan]:
    """Draws plans of filters of every form, nested up to a few levels.

    Args:
      everything: whether the filter itself may be a literal that selects everything.
    """
    simple: list[st.SearchStrategy[FilterPlan]] = [
        st.builds(TypePlan, st.sampled_from(VARIABLE_KINDS), st.booleans()),
        st.builds(TagPlan, st.sampled_from(["red", "blue", "a"]), st.booleans()),
        st.builds(PathPlan, st.sampled_from([*NAMES, 0, 1])),
        st.builds(CallablePlan, st.sampled_from(sorted(CALLABLES))),
        st.builds(NothingPlan, st.sampled_from(list(NOTHING))),
    ]
    trivial = st.builds(EverythingPlan, st.sampled_from(list(EVERYTHING)))
    nested = st.recursive(st.one_of(*simple, trivial), _combinations, max_leaves=5)
    return nested if everything else st.one_of(*simple, _combinations(nested))


def filter_groups() -> st.SearchStrategy[tuple[FilterPlan, ...]]:
    """Draws one to four filters, the last of them a literal that selects everything."""
    special = st.lists(filters(everything=False), max_size=3)
    rest = st.builds(EverythingPlan, st.sampled_from(["...", "True"]))
    return st.builds(lambda first, last: (*first, last), special, rest)


def _combinations(inner: st.SearchStrategy[FilterPlan]) -> st.SearchStrategy[FilterPlan]:
    several = st.lists(inner, max_size=3).map(tuple)
    return st.one_of(
        st.builds(AnyPlan, several, st.sampled_from(["tuple", "list", "Any"])),
        st.builds(AllPlan, several),
        st.builds(NotPlan, inner),
    )
