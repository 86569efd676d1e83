"""An engine whose steps take known times, recorded as by the tracer.

``STUB_DIR/control.json`` may have ``dies_after`` (a number of completions), ``refuses_after``
(likewise), ``stalls_s`` (how long every completion takes), ``jitter`` (relative, of every step's
time) and ``engine`` (fields of engine.json that differ).
"""

import json
import os
import random
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path

from chimera_train.collect.step_log import FILE_VARIABLE, StepLog, batch_shape

CONTROL = Path(os.environ["STUB_DIR"]) / "control.json"
control = json.loads(CONTROL.read_text()) if CONTROL.exists() else {}
ENGINE = {
    "device": "stub",
    "vllm_version": "0.32.0",
    "max_num_seqs": 6,
    "max_num_batched_tokens": 128,
    "max_model_len": 256,
    "block_size": 16,
    "num_kv_blocks": 100,
    "enable_prefix_caching": True,
    "enable_chunked_prefill": True,
    "scheduling_policy": "fcfs",
    "async_scheduling": False,
    "tensor_parallel_size": 1,
    "vocab_size": 50,
    **control.get("engine", {}),
}
log = StepLog(Path(os.environ[FILE_VARIABLE]), ENGINE)
lock = threading.Lock()
completions = count(1)
decoding = []  # what decodes now: (tokens, computed, prompt tokens) of each sequence


def record(sequences):
    shape = batch_shape(sequences)
    ms = 1 + 0.01 * shape.prefill_tokens + 0.1 * shape.decode_tokens
    ms *= 1 + random.uniform(-1, 1) * control.get("jitter", 0.0)
    log.add(shape, kv_blocks_used=1, schedule_ms=0.1, step_ms=ms, end_s=time.monotonic())


def complete(n_seqs, prompt_tokens, output_tokens):
    with lock:
        left = n_seqs * prompt_tokens
        while left > 0:
            chunk = min(left, ENGINE["max_num_batched_tokens"] - len(decoding))
            record([(chunk, 0, prompt_tokens + 1), *decoding])
            left -= chunk
        if output_tokens > 1:
            decoding[:] = [(1, prompt_tokens, prompt_tokens)] * n_seqs
    for _ in range(output_tokens - 1):
        with lock:
            record(decoding)
        time.sleep(0.0002)
    with lock:
        if output_tokens > 1:
            decoding.clear()
        log.flush()


class Handler(BaseHTTPRequestHandler):
    disable_nagle_algorithm = True

    def do_GET(self):
        name = sys.argv[sys.argv.index("--served-model-name") + 1]
        self.answer(200, {"data": [{"id": name}], "version": "0.32.0"})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        number = next(completions)
        if number > control.get("dies_after", 1e9):
            sys.stderr.write("out of imaginary memory\n")
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        if number > control.get("refuses_after", 1e9):
            self.answer(400, {"error": {"message": "no can do"}})
            return
        time.sleep(control.get("stalls_s", 0.0))
        complete(len(body["prompt"]), len(body["prompt"][0]), body["max_tokens"])
        usage = {"completion_tokens": body["max_tokens"]}
        chunks = [
            {"choices": [{"index": index, "text": ""}], "usage": usage}
            for index in range(len(body["prompt"]))
        ]
        self.send(
            200, "".join(map("data: {}\n\n".format, map(json.dumps, chunks))), "text/event-stream"
        )

    def answer(self, status, body):
        self.send(status, json.dumps(body), "application/json")

    def send(self, status, text, content_type):
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format, *args):
        pass


port = int(sys.argv[sys.argv.index("--port") + 1])
ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
