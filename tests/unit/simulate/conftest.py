import pytest

from chimera_train.traces.store import write_table


@pytest.fixture(scope="session")
def traces_dir(tmp_path_factory):
    """Traces of two models on ten questions, two samples each, in one or two stages."""
    directory = tmp_path_factory.mktemp("traces")
    programs, stages = [], []
    for question in range(10):
        for model in ("m-small", "m-large"):
            for sample in range(2):
                name = f"q{question}-{model}-{sample}"
                outputs = [10 + question + sample, 5][: 1 + question % 2]
                programs.append(
                    {
                        "program_id": name,
                        "task": "sums",
                        "question_id": f"q{question}",
                        "workflow": "math",
                        "model": model,
                        "sample": sample,
                        "n_stages": len(outputs),
                        "total_output_tokens": sum(outputs),
                        "score": float(model == "m-large" or question < 5),
                    }
                )
                stages += [
                    {
                        "program_id": name,
                        "stage_index": index,
                        "stage": ("solve", "verify")[index],
                        "prompt_tokens": 20 + 10 * index,
                        "system_tokens": 4,
                        "user_tokens": 14 + 10 * index,
                        "output_tokens": tokens,
                        "attempt": 0,
                        "user_text": f"user {name} {index}",
                    }
                    for index, tokens in enumerate(outputs)
                ]
    write_table(directory, "programs", programs)
    write_table(directory, "stages", stages)
    write_table(
        directory,
        "questions",
        [{"question_id": f"q{i}", "task": "sums", "text": f"question {i}"} for i in range(10)],
    )
    return directory
