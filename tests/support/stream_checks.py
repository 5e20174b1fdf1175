"""Checks of what random programs have left in the streams of a run."""

from __future__ import annotations

from collections import defaultdict

from holdfast.workflow import StreamItem
from holdfast.workflow import journal as j


async def items_of_code(engine, name: str) -> list[StreamItem]:
    """What workflow code has written, in order. Each item of a generation is there once."""
    written = [item async for item in engine.stream(name, "code")]
    indexes: dict[int, list[int]] = defaultdict(list)
    for item in written:
        assert item.step is None
        indexes[item.generation].append(item.index)
    assert all(found == list(range(len(found))) for found in indexes.values()), "each once, in their order"
    assert [item.generation for item in written] == sorted(item.generation for item in written)
    return written


async def check_items_of_steps(engine, name: str) -> None:
    """Of each completed step of the last generation, the last attempt has written everything, in order."""
    history = await engine.export(name)
    by_step: dict[str, list[StreamItem]] = {}
    async for item in engine.stream(name, "steps"):
        if item.generation == history.run.generation:
            earlier = by_step.get(item.step, [])
            by_step[item.step] = [*(one for one in earlier if not item.replaces(one)), item]
    for entry in map(j.decode_entry, history.entries[1:]):
        if isinstance(entry, j.StepDone) and entry.id.startswith("effect"):
            value = int(bytes(entry.value))
            assert [item.value for item in by_step[entry.id]] == [[value, "begin"], [value, "end"]]
