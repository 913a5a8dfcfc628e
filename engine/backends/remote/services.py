"""Where the services are that one can ask, and with which key: what `--backend` means before anything is asked."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from engine.errors import BackendError


class NotUsable(BackendError):
    """The service cannot be used as the settings want it; the message says why in one sentence."""


class NotThere(NotUsable):
    """The service is not there now, and may be in a moment."""


class Service(msgspec.Struct, frozen=True):
    """A service by its backend's name. needs_key: at its usual place."""

    title: str
    base_url: str
    key_variable: str
    needs_key: bool = False


SERVICES: Final[dict[str, Service]] = {
    "cerebras": Service("Cerebras", "https://api.cerebras.ai/v1", "CEREBRAS_API_KEY", needs_key=True),
    "openai": Service("OpenAI", "https://api.openai.com/v1", "OPENAI_API_KEY", needs_key=True),
    "vllm": Service("vLLM", "http://127.0.0.1:8000/v1", "VLLM_API_KEY"),
    "llamacpp": Service("llama.cpp's server", "http://127.0.0.1:8080/v1", "LLAMA_API_KEY"),
}


def base_url_of(service: Service, base_url: str) -> str:
    """Where it is: as the settings say, `/v1` where they name no path. Raises NotUsable."""
    url = base_url or service.base_url
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and url.isprintable()
    except ValueError:  # of a port or an IPv6 address that is none
        is_one = False
    if not is_one:
        raise NotUsable(f"base_url ({url}) is no address of a service: give one such as {service.base_url}.")
    if "@" in parts.netloc or parts.query or parts.fragment:  # may be secrets, and the address is told and logged
        raise NotUsable("base_url may have no user, query or fragment; a key is read from the environment or key_file.")
    return url.rstrip("/") if parts.path.strip("/") else f"{url.rstrip('/')}/v1"


def read_key(service: Service, base_url: str, key_file: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """The key from the file, or else from the environment; None for a service that needs none. Raises NotUsable.

    base_url: of the settings; the key in the environment is for the usual place, or for where they say.
    """
    if key_file:
        try:
            key = Path(key_file).expanduser().read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise NotUsable(f"key_file: {key_file} cannot be read ({type(error).__name__}).") from error
        if not key:
            raise NotUsable(f"key_file: {key_file} is empty.")
        return key
    key = environment.get(service.key_variable, "").strip()
    if not key and service.needs_key and not base_url:
        raise NotUsable(
            f"{service.title} wants a key: put it into the environment as {service.key_variable}, or into a file and "
            "name that with --set key_file=FILE."
        )
    return key or None
