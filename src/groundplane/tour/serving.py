"""The serving chapters: register what was trained, deploy it beside a real chat model, call both."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from groundplane.spec.service import ServiceSpec
from groundplane.tour.platform import TourPlatform
from groundplane.tour.result import Answer
from groundplane.tour.stage import Line
from groundplane.tour.training import TourFailure

if TYPE_CHECKING:
    from openai import OpenAI

CHAT_MODEL: Final = "smollm2-135m-instruct"
OWN_MODEL: Final = "tour-model"
READY_DEADLINE_S: Final = 60.0
MAX_TOKENS: Final = 48


def service_specs() -> list[ServiceSpec]:
    """One replica each, one core each: the machine of the tour has two."""
    return [
        ServiceSpec(name=OWN_MODEL, model=OWN_MODEL, context=256, slots=2),
        ServiceSpec(name=CHAT_MODEL, model=CHAT_MODEL, context=1024, slots=2),
    ]


def wait_for_models(platform: TourPlatform, names: list[str], line: Line) -> float:
    """Waits until the gateway lists all of them; the answer is how long that took.

    Raises:
        TourFailure: not within the deadline.
    """
    begun_s = time.monotonic()
    while True:
        ready = [model["id"] for model in platform.gateway_get("/v1/models")["data"]]
        missing = [name for name in names if name not in ready]
        if not missing:
            return time.monotonic() - begun_s
        if time.monotonic() - begun_s > READY_DEADLINE_S:
            raise TourFailure(f"{', '.join(missing)} not ready after {READY_DEADLINE_S:.0f} s")
        line.set(f"waiting for {', '.join(missing)}")
        time.sleep(0.1)


class Caller:
    """Calls the gateway as anybody would, with the official client, and counts for itself."""

    def __init__(self, base_url: str, key: str) -> None:
        from openai import OpenAI

        self._client: OpenAI = OpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=120.0)
        self.tokens_in = 0
        self.tokens_out = 0
        self.requests = 0

    def complete(self, model: str, prompt: str) -> Answer:
        """One plain completion."""
        begun_s = time.monotonic()
        reply = self._client.completions.create(
            model=model, prompt=prompt, max_tokens=MAX_TOKENS, temperature=0.0
        )
        spent_s = time.monotonic() - begun_s
        tokens = self._count(reply.usage)
        return Answer(model, False, prompt, reply.choices[0].text, 0.0, tokens, tokens / spent_s)

    def chat(self, model: str, prompt: str) -> Answer:
        """One streamed chat completion."""
        begun_s = time.monotonic()
        stream = self._client.chat.completions.create(
            model=model,
            messages=[
                {"role": "system", "content": "You are a helpful assistant. Answer in English."},
                {"role": "user", "content": prompt},
            ],
            max_tokens=MAX_TOKENS,
            temperature=0.0,
            stream=True,
            stream_options={"include_usage": True},
        )
        parts: list[str] = []
        first_s, tokens = 0.0, 0
        for chunk in stream:
            if chunk.usage is not None:
                tokens = self._count(chunk.usage)
            text = chunk.choices[0].delta.content if chunk.choices else None
            if text:
                first_s = first_s or time.monotonic() - begun_s
                parts.append(text)
        decode_s = time.monotonic() - begun_s - first_s
        rate = (tokens - 1) / decode_s if tokens > 1 else 0.0
        return Answer(model, True, prompt, "".join(parts), first_s, tokens, rate)

    def _count(self, usage: Any) -> int:
        self.requests += 1
        self.tokens_in += usage.prompt_tokens
        self.tokens_out += usage.completion_tokens
        return int(usage.completion_tokens)


def export_folder(state: Path, job_id: str) -> Path:
    """Where the trainer left the model that it exported."""
    return state / "jobs" / job_id / "export"
