"""The server of the vLLM stand-in: vLLM's endpoints, and mishaps on demand.

STUB_PIDS        a file to which every process of the stub appends its pid
STUB_MISHAP      exit: print 40 lines and leave with status 3; hang: never listen
STUB_MODELS      comma-separated names to list instead of the one that is served

A GET of /die ends the process with SIGKILL; one of /environment answers with its environment.
"""

import argparse
import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

WORDS = ["two", " and", " two", " is", " four"]


def _record_pid():
    if "STUB_PIDS" in os.environ:
        with Path(os.environ["STUB_PIDS"]).open("a") as pids:
            pids.write(f"{os.getpid()}\n")


class Handler(BaseHTTPRequestHandler):
    name = ""

    def _answer(self, body, content_type="application/json"):
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/die":
            os.kill(os.getpid(), signal.SIGKILL)
        models = os.environ.get("STUB_MODELS", self.name).split(",")
        answers = {
            "/health": {},
            "/version": {"version": "0.0.stub"},
            "/v1/models": {"data": [{"id": name, "max_model_len": 1024} for name in models]},
            "/environment": {"argv": sys.argv, "environment": dict(os.environ)},
        }
        if self.path in answers:
            self._answer(json.dumps(answers[self.path]).encode())
        else:
            self.send_error(404)

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/chat/completions" or request["model"] != self.name:
            self.send_error(404, "no such model")
            return
        words = WORDS[: request["max_tokens"]]
        deltas = [{"role": "assistant", "content": ""}, *({"content": word} for word in words)]
        chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
        usage = {"prompt_tokens": 5, "completion_tokens": len(words)}
        chunks.append({"choices": [], "usage": usage})
        events = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks] + ["data: [DONE]\n\n"]
        self._answer("".join(events).encode(), "text/event-stream")

    def log_message(self, format, *args):
        sys.stderr.write(f"request: {format % args}\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--served-model-name")
    parser.add_argument("--port", type=int)
    arguments, _ = parser.parse_known_args()
    _record_pid()
    mishap = os.environ.get("STUB_MISHAP")
    if mishap == "exit":
        for line in range(40):
            sys.stderr.write(f"log line {line}\n")
        sys.exit(3)
    if mishap == "hang":
        time.sleep(3600)
    Handler.name = arguments.served_model_name
    ThreadingHTTPServer(("127.0.0.1", arguments.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
