"""An OpenAI-compatible model server that counts for itself, for tests: `python counting_server.py --port N`.

Its tokens are words made from the prompt by arithmetic, so that the same request gives the same answer. It
keeps count by the `x-request-id` it was sent: a token counts when its bytes were handed to the socket. It can
be asked at `GET /count/REQUEST_ID`, and for everything at `GET /counts`. Faults are asked for in the model
name's suffix or in `metadata`: see `Fault`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import zlib
from typing import Any

import httptools

WORDS = ["ground", "plane", "copper", "light", "é", "日本", "token", "stream", "rack", "\n", '"quoted"']


class Request:
    """One parsed HTTP request."""

    def __init__(self) -> None:
        self.target = ""
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.complete = False

    def on_url(self, url: bytes) -> None:
        self.target = url.decode()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete = True


class Gone:
    """Whether the client has left, without reading what it may send next."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    def now(self) -> bool:
        return self._reader.at_eof() or self._reader.exception() is not None


class CountingServer:
    """The server and its books.

    Args:
        token_s: pause between the tokens of an answer.
    """

    def __init__(self, token_s: float = 0.0) -> None:
        self.token_s = token_s
        self.counts: dict[str, dict[str, Any]] = {}
        self.bodies: list[dict[str, Any]] = []
        self.num_connections = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        request = Request()
        parser = httptools.HttpRequestParser(request)
        while not request.complete:
            data = await reader.read(65536)
            if not data:
                return False
            parser.feed_data(data)
        path = request.target.split("?")[0]
        if path == "/health":
            return await self._json(writer, 200, {"status": "ok"})
        if path == "/counts":
            return await self._json(writer, 200, self.counts)
        if path == "/bodies":
            return await self._json(writer, 200, self.bodies)
        if path.startswith("/count/"):
            count = self.counts.get(path.removeprefix("/count/"))
            return await self._json(writer, 404 if count is None else 200, count or {})
        return await self._answer(request, path, reader, writer)

    async def _answer(
        self, request: Request, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        body = json.loads(bytes(request.body))
        self.bodies.append(body)
        del self.bodies[:-50]
        fault = (body.get("metadata") or {}).get("fault", "")
        if fault == "500":
            return await self._json(writer, 500, {"error": {"message": "injected", "type": "server_error"}})
        if fault == "503":
            return await self._json(writer, 503, {"error": {"message": "loading", "type": "unavailable"}})
        if fault == "drop":
            return False
        prompt = json.dumps(body.get("messages") or body.get("prompt") or body.get("input") or "")
        request_id = request.headers.get("x-request-id", "none")
        count = {
            "prompt_tokens": 3 + len(prompt.split()),
            "cached_tokens": 1,
            "completion_tokens": 0,
            "state": "running",
        }
        self.counts[request_id] = count
        gone = Gone(reader)
        try:
            if path.endswith("/embeddings"):
                return await self._embeddings(writer, body, count)
            tokens = self._tokens(body, prompt)
            if body.get("stream"):
                return await self._stream(writer, path, body, tokens, count, gone, fault)
            return await self._plain(writer, path, body, tokens, count, gone, fault)
        finally:
            count["state"] = "ended"

    def _tokens(self, body: dict[str, Any], prompt: str) -> list[str]:
        number = int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)
        seed = zlib.crc32(prompt.encode()) + int(body.get("seed") or 0)
        return [WORDS[(seed + 7 * index) % len(WORDS)] + " " for index in range(number)]

    async def _pause(self, gone: Gone, fault: str) -> bool:
        """Between two tokens; True when the client has left."""
        pause_s = 0.2 if fault == "slow" else self.token_s
        while pause_s > 0 and not gone.now():
            await asyncio.sleep(min(pause_s, 0.005))
            pause_s -= 0.005
        return gone.now()

    async def _plain(
        self,
        writer: asyncio.StreamWriter,
        path: str,
        body: dict[str, Any],
        tokens: list[str],
        count: dict[str, Any],
        gone: Gone,
        fault: str,
    ) -> bool:
        for _ in tokens:
            if await self._pause(gone, fault):
                return False
            count["completion_tokens"] += 1
        if fault == "cut":
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{"
            )
            await writer.drain()
            return False
        text = "".join(tokens)
        message: dict[str, Any] = {"role": "assistant", "content": text}
        finish = "length"
        if (body.get("response_format") or {}).get("type", "text") != "text":
            message["content"] = json.dumps({"answer": text})
            finish = "stop"
        if body.get("tools"):
            name = body["tools"][0]["function"]["name"]
            function = {"name": name, "arguments": '{"city": "Paris"}'}
            call = {"id": "call_1", "type": "function", "function": function}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
            finish = "tool_calls"
        choices = []
        for index in range(int(body.get("n") or 1)):
            one: dict[str, Any] = {"index": index, "finish_reason": finish, "logprobs": None}
            choices.append(one | ({"message": message} if "chat" in path else {"text": text}))
        answer = _head(body, path) | {"choices": choices, "usage": _usage(count)}
        # Whether its own client leaves now is no matter: all of it is counted and handed to the socket.
        return await self._json(writer, 200, answer)

    async def _stream(
        self,
        writer: asyncio.StreamWriter,
        path: str,
        body: dict[str, Any],
        tokens: list[str],
        count: dict[str, Any],
        gone: Gone,
        fault: str,
    ) -> bool:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        chat = "chat" in path
        head = _head(body, path, chunk=True)
        if chat:
            self._event(writer, head | {"choices": [_delta({"role": "assistant", "content": ""})]})
        for index, token in enumerate(tokens):
            if await self._pause(gone, fault):
                return False
            if fault == "cut" and index == 5:
                return False
            if fault == "error" and index == 5:
                self._event(writer, {"error": {"message": "injected", "type": "server_error"}})
                writer.write(b"0\r\n\r\n")
                await writer.drain()
                return True
            self._event(writer, head | {"choices": [_delta({"content": token}) if chat else _text(token)]})
            count["completion_tokens"] += 1
            await writer.drain()
        last = _delta({}) if chat else _text("")
        self._event(writer, head | {"choices": [last | {"finish_reason": "length"}]})
        if (body.get("stream_options") or {}).get("include_usage"):
            self._event(writer, head | {"choices": [], "usage": _usage(count)})
        _chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return not gone.now()

    async def _embeddings(
        self, writer: asyncio.StreamWriter, body: dict[str, Any], count: dict[str, Any]
    ) -> bool:
        usage = {"prompt_tokens": count["prompt_tokens"], "total_tokens": count["prompt_tokens"]}
        data = [{"object": "embedding", "index": 0, "embedding": [0.5, -0.25]}]
        answer = {"object": "list", "data": data, "model": body["model"], "usage": usage}
        return await self._json(writer, 200, answer)

    def _event(self, writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
        _chunk(writer, b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n")

    async def _json(self, writer: asyncio.StreamWriter, status: int, answer: Any) -> bool:
        body = json.dumps(answer).encode()
        writer.write(
            b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            % (status, len(body))
            + body
        )
        await writer.drain()
        return True


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


def _head(body: dict[str, Any], path: str, *, chunk: bool = False) -> dict[str, Any]:
    kind = ("chat.completion.chunk" if chunk else "chat.completion") if "chat" in path else "text_completion"
    return {"id": "cmpl-1", "object": kind, "created": 1, "model": body["model"]}


def _delta(delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": None}


def _text(text: str) -> dict[str, Any]:
    return {"index": 0, "text": text, "finish_reason": None}


def _usage(count: dict[str, Any]) -> dict[str, Any]:
    return {
        "prompt_tokens": count["prompt_tokens"],
        "completion_tokens": count["completion_tokens"],
        "total_tokens": count["prompt_tokens"] + count["completion_tokens"],
        "prompt_tokens_details": {"cached_tokens": count["cached_tokens"]},
    }


async def main(port: int, token_s: float) -> None:
    server = CountingServer(token_s)
    listener = await asyncio.start_server(server.handle, "127.0.0.1", port, backlog=1024)
    print(listener.sockets[0].getsockname()[1], flush=True)
    async with listener:
        await listener.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--token-s", type=float, default=0.0)
    options = parser.parse_args()
    try:
        asyncio.run(main(options.port, options.token_s))
    except KeyboardInterrupt:
        os._exit(0)
    sys.exit(0)
