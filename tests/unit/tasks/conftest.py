import gzip
import json

import pytest
import yaml


@pytest.fixture
def write_task(tmp_path):
    """A factory of task files with rows of data beside them."""

    def write(rows, *, name="mine", compress=False, **settings):
        data = tmp_path / ("rows.jsonl.gz" if compress else "rows.jsonl")
        with gzip.open(data, "wt") if compress else data.open("w") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump({"name": name, "source": {"file": data.name}, **settings}))
        return str(path)

    return write
