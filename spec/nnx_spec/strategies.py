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
    """Draws a plan of an object graph with up to a dozen objects, its root a Module.

    Args:
      draw: supplied by hypothesis.
      sharing: whether an object may stand at several places.
      cycles: whether a reference to an ancestor may be among them; needs `sharing`.
      statics: whether Modules and Pytrees may have static attributes.
    """
    return draw(_Graph(sharing=sharing, cycles=cycles, statics=statics).node(ModulePlan, depth=0))


def trees() -> st.SearchStrategy[NodePlan]:
    """Draws plans without sharing: what tree mode takes."""
    return graphs()


class _Graph:
    """Draws one plan, keeping count of the objects that may be referred to."""

    def __init__(self, *, sharing: bool, cycles: bool, statics: bool) -> None:
        self.sharing = sharing
        self.cycles = cycles
        self.statics = statics
        self.count = 0
        self.open: list[int] = []

    @st.composite
    @staticmethod
    def _node(draw: st.DrawFn, graph: _Graph, kind: type[NodePlan], depth: int) -> NodePlan:
        graph.open.append(graph.count)
        graph.count += 1
        attributes = kind in (ModulePlan, PytreePlan)
        names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=3 if depth else 4))
        keys: list[str | int] = list(range(len(names))) if kind is ListPlan else list(names)
        children = tuple((key, draw(graph.child(depth + 1, attributes))) for key in keys)
        graph.open.pop()
        return kind(children)

    def node(self, kind: type[NodePlan], depth: int) -> st.SearchStrategy[NodePlan]:
        return self._node(self, kind, depth)

    def child(self, depth: int, attribute: bool) -> st.SearchStrategy[Plan]:
        options: list[st.SearchStrategy[Plan]] = [self._variable(), self._variable(), arrays]
        if attribute and self.statics:
            options.append(statics)
        if depth < 3 and self.count < 12:
            kinds = st.sampled_from([ModulePlan, PytreePlan, ListPlan, DictPlan])
            options.append(kinds.flatmap(lambda kind: self.node(kind, depth)))
        targets = [n for n in range(self.count) if self.cycles or n not in self.open]
        if self.sharing and targets:
            options += [st.sampled_from(targets).map(SharedPlan)] * 2
        return st.one_of(options)

    def _variable(self) -> st.SearchStrategy[Plan]:
        def count(plan: VariablePlan) -> VariablePlan:
            self.count += 1
            return plan

        return variables.map(count)


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
