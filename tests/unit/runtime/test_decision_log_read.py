"""What the gateway logs is what evaluation and import read."""

from decision_rows import write_log

from chimera_train.live.figures import length_figures, length_rows, service_figures
from chimera_train.traces.decisions import read_decisions


async def test_the_log_of_a_gateway_can_be_judged(rig, tmp_path) -> None:
    async with rig() as r:
        for program in ("p1", "p2"):
            for stage, words in (("solve", "8"), ("verify", "3")):
                headers = {"X-Program-Id": program, "X-Workflow": "math", "X-Stage": stage}
                assert (await r.chat(words, headers=headers)).status_code == 200
        await r.idle()
        log = read_decisions(write_log(tmp_path, r.decisions))
    rows = length_rows(log)
    assert rows["target_tokens"].tolist() == [6, 3, 6, 3]  # three tokens a request
    assert rows["predicted"].tolist() == [8, 3, 8, 3]
    figures = length_figures(rows, seed=0)
    assert figures["kendall_distance"]["overall"] == 0
    assert figures["interval_coverage"]["overall"] == 1  # from half to double
    assert figures["bias"]["per_stage"]["verify"] == 0
    assert 0 < service_figures(log)["overhead_share"] < 1
