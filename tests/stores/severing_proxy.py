"""A TCP proxy that can lose a server's answer: what the client asked for was done, and the client never hears of it."""

import socket
import threading
from contextlib import suppress


class SeveringProxy:
    """Passes bytes through to a port on loopback, until it is told to hang up once a certain word was sent."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._word: bytes | None = None
        self.severed = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def sever_after(self, word: bytes) -> None:
        """Hang up, once, in the stead of passing on the answer to a message with this word."""
        self._word = word

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                is_sent = threading.Event()
                threading.Thread(target=self._ask, args=(client, server, is_sent), daemon=True).start()
                threading.Thread(target=self._answer, args=(client, server, is_sent), daemon=True).start()

    def _ask(self, client: socket.socket, server: socket.socket, is_sent: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(65_536):
                if self._word is not None and self._word in data:
                    is_sent.set()
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def _answer(self, client: socket.socket, server: socket.socket, is_sent: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(65_536):
                if is_sent.is_set():
                    self._word = None
                    self.severed += 1
                    break
                client.sendall(data)
        for end in (client, server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
