"""An engine that answers STUB_ANSWERS requests and then dies with a last word in its log."""

import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

ANSWERS = int(os.environ["STUB_ANSWERS"])
REQUESTS = count(1)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        name = sys.argv[sys.argv.index("--served-model-name") + 1]
        self._send({"data": [{"id": name}], "version": "0.0.stub"})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if next(REQUESTS) > ANSWERS:
            sys.stderr.write("out of imaginary memory\n")
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        usage = {"prompt_tokens": 5, "completion_tokens": body.get("max_tokens", 2)}
        chunks = [
            {"choices": [{"index": 0, "delta": {"content": "answer 2"}}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage},
        ]
        events = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks] + ["data: [DONE]\n\n"]
        self._send("".join(events), "text/event-stream")

    def _send(self, body, content_type="application/json"):
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format, *args):
        pass


port = int(sys.argv[sys.argv.index("--port") + 1])
ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
