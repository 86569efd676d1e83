import time

import pytest

from chimera_train.collect import drive as module
from chimera_train.collect.drive import Arrival, drive
from chimera_train.errors import ChimeraError
from chimera_train.output import Output


@pytest.fixture
def patient(monkeypatch):
    """Schedules of a test are so short that a busy machine always lags."""
    monkeypatch.setattr(module, "MAX_LAG", 100.0)


async def run(engine, workflow, task, times_ms):
    questions = task.questions(len(times_ms), seed=1)
    arrivals = [Arrival(at_ms, q) for at_ms, q in zip(times_ms, questions, strict=True)]
    return await drive(
        engine.base_url,
        "fake",
        workflow,
        arrivals,
        seed=1,
        temperature=0.0,
        output=Output(quiet=True),
        label="run",
    )


async def test_programs_start_on_time_and_do_not_wait_for_each_other(
    engine, workflow, task, patient
):
    engine.delay_s = 0.3
    start = time.time()
    results = await run(engine, workflow, task, [100, 200, 300])
    assert [result.program_id for result in results] == ["run-0", "run-1", "run-2"]
    assert all(result.error is None for result in results)
    begun_s = [result.started_at.timestamp() - start for result in results]
    assert begun_s[0] >= 0.1
    assert begun_s[1] >= 0.2
    assert begun_s[2] >= 0.3
    # Each takes at least two stages of 300 ms: the later ones began before the first had ended.
    assert begun_s[2] < begun_s[0] + results[0].latency_ms / 1000


async def test_every_program_is_identified_and_its_end_reported(engine, workflow, task, patient):
    await run(engine, workflow, task, [0, 10])
    assert {headers["x-program-id"] for headers in engine.headers} == {"run-0", "run-1"}
    assert sorted(engine.ended) == ["run-0", "run-1"]


async def test_a_late_dispatch_voids_the_run(engine, workflow, task, monkeypatch):
    monkeypatch.setattr(module, "MAX_LAG", 0.0)
    with pytest.raises(ChimeraError, match="the offered load was not reached"):
        await run(engine, workflow, task, [0, 10])
