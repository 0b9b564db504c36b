"""ClickHouse's engine behind as much of its HTTP interface as its driver uses; a program: PORT DIRECTORY USER:PASSWORD.

The engine is chDB's, in this process. The front reads nothing of a statement and nothing of its result: what the driver
sends is what the engine is asked, and the engine's answer is what the driver gets. Each HTTP connection has one of the
engine, so statements of several clients run at the same time, as in a server.
"""

import base64
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

import chdb

_CODE = re.compile(r"Code: (\d+)\.")


class Front(BaseHTTPRequestHandler):
    """One request: a statement in the parameter ``query``, in the body, or half in either."""

    protocol_version = "HTTP/1.1"
    # An answer is two packets, and the second one must not wait until the first is acknowledged.
    disable_nagle_algorithm = True
    directory: ClassVar[str]
    authorization: ClassVar[str]
    engine: Any

    def setup(self) -> None:
        super().setup()
        self.engine = chdb.connect(self.directory)

    def finish(self) -> None:
        self.engine.close()
        super().finish()

    def do_GET(self) -> None:
        if urlsplit(self.path).path == "/ping":
            self._answer(200, b"Ok.\n")
        else:
            self.do_POST()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Authorization") != self.authorization:
            self._answer(403, b"Code: 516. DB::Exception: ZZDETAILZZ. (AUTHENTICATION_FAILED)", 516)
            return
        parameters = dict(parse_qsl(urlsplit(self.path).query))
        statement = "\n".join(part for part in (parameters.get("query", ""), body.decode()) if part)
        database = parameters.get("database", "default").replace("\\", "\\\\").replace("`", "\\`")
        try:
            # Without a database the connection is in that of the statement before.
            self.engine.query(f"USE `{database}`")
            answer = self.engine.query(statement, "TabSeparated").bytes()
        except Exception as error:  # noqa: BLE001 - the engine's errors have no class of their own
            code = _CODE.search(str(error))
            self._answer(500, str(error).encode(), int(code[1]) if code else 1)
        else:
            self._answer(200, answer)

    def _answer(self, status: int, body: bytes, code: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if code is not None:
            self.send_header("X-ClickHouse-Exception-Code", str(code))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: Any) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    # Many clients may come at once.
    request_queue_size = 64


def main() -> None:
    """Serve until somebody ends the process."""
    port, directory, user_and_password = sys.argv[1:]
    Front.directory = directory
    Front.authorization = "Basic " + base64.b64encode(user_and_password.encode()).decode()
    # The engine is there for as long as it has a connection.
    engine: Any = chdb.connect(directory)
    with Server(("127.0.0.1", int(port)), Front) as server:
        server.serve_forever()
    engine.close()


if __name__ == "__main__":
    main()
