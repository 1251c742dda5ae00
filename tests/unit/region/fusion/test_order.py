"""The order of kernels: after what they need, and early where that saves memory."""

from __future__ import annotations

from weft.region.fusion.order import Order, Traffic

MB = 1 << 20


def backward_pass(layers: int) -> tuple[Order, Traffic]:
    """For each layer a value that is computed again (kernel 2 * k) and the signal that comes from
    the layer behind it (kernel 2 * k + 1); the gradient of its weight, from both, is computed in
    the end (kernel 2 * layers + k)."""
    before: dict[int, set[int]] = {}
    reads: dict[int, set[str]] = {}
    stores: dict[int, set[str]] = {}
    for k in range(layers):
        kept, signal, slope = 2 * k, 2 * k + 1, 2 * layers + k
        before[kept] = {2 * k - 1} if k else set()
        reads[kept], stores[kept] = {"x"}, {f"kept{k}"}
        before[signal] = {2 * k - 1} if k else set()
        reads[signal] = {f"w{k}", *([f"signal{k - 1}"] if k else [])}
        stores[signal] = {f"signal{k}"}
        before[slope] = {kept, signal}
        reads[slope] = {f"kept{k}", f"signal{k}"}
        stores[slope] = {f"slope{k}"}
    internal = {f"{what}{k}": MB for k in range(layers) for what in ("kept", "signal")}
    given = {"x": MB, **{f"w{k}": MB // 2 for k in range(layers)}}
    handed_out = {f"slope{k}": MB // 2 for k in range(layers)}
    return Order(before), Traffic(reads, stores, internal, given, handed_out)


def test_what_frees_memory_runs_early() -> None:
    order, traffic = backward_pass(6)
    found = order.sequence(traffic)
    assert sorted(found) == list(range(18))
    place = {number: at for at, number in enumerate(found)}
    for number, needed in order.before.items():
        assert all(place[earlier] < place[number] for earlier in needed)
    assert traffic.peak(range(18)) == 12 * MB
    assert traffic.peak(found) <= 4 * MB


def test_the_order_of_the_program_stays_where_nothing_is_saved() -> None:
    reads = {0: set[str](), 1: {"a"}, 2: {"a"}}
    stores = {0: {"a"}, 1: {"out"}, 2: {"other"}}
    sizes = {"a": MB}
    traffic = Traffic(reads, stores, sizes, {}, {"out": MB, "other": MB})
    assert Order({0: set(), 1: {0}, 2: {0}}).sequence(traffic) == [0, 1, 2]


def test_an_output_waits_for_the_readers_of_an_input_that_it_may_overwrite() -> None:
    """Kernel 3 makes the new weight; kernel 2 still reads the old one."""
    reads = {0: {"x"}, 1: {"a"}, 2: {"b", "weight"}, 3: {"a", "weight"}, 4: {"c"}}
    stores = {0: {"a"}, 1: {"b"}, 2: {"c"}, 3: {"new"}, 4: {"out"}}
    before = {0: set[int](), 1: {0}, 2: {1}, 3: {0}, 4: {2}}
    internal = {"a": 8 * MB, "b": MB, "c": 2 * MB}
    given, handed_out = {"x": MB, "weight": MB}, {"new": MB, "out": 1}
    traffic = Traffic(reads, stores, internal, given, handed_out)
    found = Order(before).sequence(traffic)
    assert found.index(2) < found.index(3)
